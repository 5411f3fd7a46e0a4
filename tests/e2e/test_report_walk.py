"""A walk through the report as people take it: with the keyboard alone, and by links from a static server.

Every link that can be shared shows the same from a server as from a folder.
"""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# The browser is the one of these tests.
from test_report_browser import PAGES, Browser, browser, driver, folder  # noqa: F401

pytestmark = pytest.mark.browser
#: Views of the grid that a link holds.
VIEWS = (
    *PAGES,
    "index.html#q=verl%3A0.9+%26+%21pass&open=static&sort=-cann&group=soc",
    "index.html#view=runs&q=gspo",
    "index.html#columns=verl%2Cpython&at=verl-0.9.1-sim%2F%2Bconvergence",
    "changes.html#since=2026-11-18",
    "owners.html#find=loss",
    "time.html#find=gspo&from=2026-11-01",
    "cells/verl-0.9.1-sim.html#check-gspo",
)
#: What a person sees: the words, which tiles a filter dims, what has the focus, and what is marked as the target.
SEEN = """
const words = document.querySelector("main").innerText;
const dim = [...document.querySelectorAll("#rows .tile")].map((tile) => tile.classList.contains("dim"));
const on = document.activeElement, aim = document.querySelector(":target");
return JSON.stringify([document.title, words, dim, on.innerText?.slice(0, 200), on.getAttribute("href"), aim && aim.id]);
"""
FOCUS = """
const on = document.activeElement, style = getComputedStyle(on), box = on.getBoundingClientRect();
const seen = box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
return {name: (on.getAttribute("aria-label") || on.innerText || on.value || on.placeholder || on.labels?.[0]?.innerText || "").trim(),
  tag: on.tagName, href: on.getAttribute("href"), seen,
  ring: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  place: [...document.querySelectorAll("*")].indexOf(on), type: on.getAttribute("type")};
"""


class Silent(http.server.SimpleHTTPRequestHandler):
    """A static server, as any host of files is."""

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:  # noqa: F811 - the imported fixture
    handler = functools.partial(Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def seen(window: Browser, address: str) -> str:
    """What a link shows."""
    from selenium.webdriver.support.ui import WebDriverWait

    window.driver.get("about:blank")
    window.driver.get(address)
    window.js("localStorage.clear(); sessionStorage.clear()")
    window.driver.get("about:blank")
    window.driver.get(address)
    if "lang=zh" in address:
        WebDriverWait(window.driver, 20).until(
            lambda at: at.execute_script("return Boolean(window.NPU_MATRIX_REASONS)")
        )
    if "view=runs" in address:
        WebDriverWait(window.driver, 20).until(
            lambda at: at.execute_script("return document.querySelectorAll('#rows td.run').length > 0")
        )
    window.settle()
    found: str = window.js(SEEN)
    return found


@pytest.mark.parametrize("view", VIEWS)
def test_a_link_shows_the_same_from_a_server_and_from_a_folder(
    browser: Browser,  # noqa: F811
    folder: Path,  # noqa: F811
    address: str,
    view: str,
) -> None:
    served = seen(browser, f"{address}/{view}")
    assert len(served) > 200
    assert served == seen(browser, f"{folder.as_uri()}/{view}")


@pytest.mark.parametrize("page", ["index.html", "time.html", "owners.html", "cells/one-step-off-2card.html"])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_tab_key_reaches_everything_in_order_and_shows_where_it_is(
    browser: Browser,  # noqa: F811
    page: str,
    width: int,
) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(page, width=width)
    stops: list[dict[str, Any]] = []
    for _ in range(400):
        browser.press(Keys.TAB)
        stop = browser.js(FOCUS)
        if stop["tag"] in {"BODY", "HTML"}:
            break
        # The parts of a date have one element.
        if stop["type"] != "date":
            stops.append(stop)
    else:
        pytest.fail("the Tab key never leaves the page")
    assert stops[0]["name"] == "Skip to the content"
    assert [stop["name"] for stop in stops if not stop["ring"]] == []
    assert [stop for stop in stops if not stop["seen"]] == []
    assert [stop for stop in stops if not stop["name"]] == []
    places = [stop["place"] for stop in stops]
    assert places == sorted(set(places)), "the order of the page"
    assert (stops[-1]["href"] or "").endswith("changes.atom"), "to the end of the page"


def test_the_link_to_the_content_leaves_the_filter_alone(browser: Browser) -> None:  # noqa: F811
    from selenium.webdriver.common.keys import Keys

    browser.open("index.html#q=gspo")
    before = browser.shown()
    browser.one("a.skip").send_keys(Keys.ENTER)
    browser.settle()
    assert browser.js("return scrollY") < 200
    assert browser.one("#q").get_attribute("value") == "gspo"
    assert browser.shown() == before


def test_the_keyboard_reads_the_runs_of_a_check_and_opens_it(browser: Browser) -> None:  # noqa: F811
    from selenium.webdriver.common.keys import Keys

    browser.open("index.html#view=runs")
    browser.type("check:gspo & verl-0.9.1-sim")
    browser.press(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    newest = browser.js("return document.activeElement.title")
    browser.press(Keys.ARROW_RIGHT)
    assert browser.js("return document.activeElement.matches('td.run')")
    assert browser.js(FOCUS)["ring"]
    browser.press(Keys.ARROW_LEFT)
    assert browser.js("return document.activeElement.title") == newest
    assert newest.endswith(": fail")
    browser.press(Keys.ENTER)
    browser.wait_for_address("cells/verl-0.9.1-sim.html#check-gspo")


def test_escape_closes_the_columns_and_keeps_the_filter(browser: Browser) -> None:  # noqa: F811
    from selenium.webdriver.common.keys import Keys

    browser.open("index.html#q=gspo")
    browser.one("#columns summary").send_keys(Keys.ENTER)
    browser.press(Keys.TAB, " ", Keys.ESCAPE)
    assert not browser.js("return document.getElementById('columns').open")
    assert browser.js("return document.activeElement.textContent") == "columns"
    assert browser.one("#q").get_attribute("value") == "gspo"


def test_a_square_of_two_axes_leads_the_keyboard_to_its_cells(browser: Browser) -> None:  # noqa: F811
    from selenium.webdriver.common.keys import Keys

    browser.open("index.html#view=torch_npu,cann")
    browser.one("#pivot-box button").send_keys(Keys.ENTER)
    browser.settle()
    assert browser.js("return document.activeElement.closest('#rows th') !== null")


def test_the_language_of_a_link_stays_on_the_next_page(browser: Browser) -> None:  # noqa: F811
    browser.open("index.html#lang=zh")
    browser.one("nav.pages a[href='owners.html']").click()
    browser.wait_for_address("owners.html")
    assert browser.js("return document.documentElement.lang") == "zh-CN"
    browser.one("#language").click()
    browser.open("index.html")
    assert browser.js("return document.documentElement.lang") == "en"
