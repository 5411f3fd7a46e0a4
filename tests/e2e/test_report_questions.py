"""Questions that people bring to the report, answered by clicking, on weeks of runs of three machines.

What broke this week and why; when did hardware last run GSPO; who owns this failure.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from signing_keys import make_key

# The browser is the one of these tests.
from test_report_browser import Browser, axe_core, driver, violations  # noqa: F401

from harness.report.model.report_model import build_model
from harness.report.publish.publish import render_all
from harness.settings import load_settings
from harness.workspace.results.commits_of_turns import commits_of_turns

pytestmark = pytest.mark.browser
WEEKS = Path(__file__).parents[1] / "unit" / "report" / "weeks_of_runs.py"
VISIBLE = "return [...document.querySelectorAll(arguments[0])].filter((row) => !row.hidden && row.offsetParent).map((row) => row.innerText.replace(/\\s+/g, ' '))"


@functools.cache
def weeks() -> Any:
    spec = importlib.util.spec_from_file_location("weeks_of_runs", WEEKS)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("weeks_of_runs", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("weeks")
    commits = weeks().seeded_repository(folder / "project")
    ledger, last = weeks().weeks_of_runs(folder, commits)
    inputs = weeks().inputs_after_weeks(ledger, last)
    turns = [turn for result in inputs.results for turn in result.turns]
    settings = load_settings({}, {}, folder / "project")
    render_all(build_model(replace(inputs, commits=commits_of_turns(settings, turns))), folder / "reports")
    yield folder / "reports"
    ledger.close()


@pytest.fixture(scope="module")
def lab_report(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same weeks, with the ledger of another host that ran GSPO on NPUs and signed one of two outcomes."""
    folder = tmp_path_factory.mktemp("lab")
    key, public = make_key(folder, "lab-key")
    ledger, last = weeks().weeks_of_runs(folder, lab=weeks().Lab(key=key, public=public))
    render_all(build_model(weeks().inputs_after_weeks(ledger, last)), folder / "reports")
    yield folder / "reports"
    ledger.close()


@pytest.fixture
def page(driver: Any, report: Path) -> Iterator[Browser]:  # noqa: F811 - the imported fixture
    window = Browser(driver, report)
    window.open()
    window.js("localStorage.clear(); sessionStorage.clear()")
    window.console_messages()
    window.open()
    yield window
    assert window.console_messages() == []


def click(page: Browser, name: str) -> None:
    """Follow the link of this name in the navigation."""
    page.driver.find_element("xpath", f"//nav[@aria-label='Pages']//a[text()='{name}']").click()
    page.wait_for_address(f"{name}.html")


def shown(page: Browser, selector: str) -> list[str]:
    found: list[str] = page.js(VISIBLE, selector)
    return found


def test_what_broke_this_week_and_why(page: Browser) -> None:
    click(page, "time")
    assert page.one("#headline").text.startswith(
        "In the last 7 days 2 checks of cells broke and 0 were fixed"
    )
    (broke,) = shown(page, "#broke tbody tr")
    assert "patches GSPO async rollout; gpt-oss-20b GRPO unexpected failure" in broke
    assert "An input changed: verl_tree.commit: '5a2e0b1c00…' -> '9f3d77aa00…'" in broke
    assert "A. Maintainer" in broke
    assert "verl moves to 9f3d77aa" in broke
    chance = shown(page, "#chance tbody tr")
    assert any("lint" in row and "flaky" in row for row in chance)
    assert any("resolve" in row and "fail on laptop" in row for row in chance)
    page.one("#broke tbody th a").click()
    page.wait_for_address("cells/gspo-async.html#check-patches")
    assert "measured by npu-1" in page.one("#check-patches").text


def test_a_week_is_found_by_its_day_and_the_link_is_shared(page: Browser) -> None:
    click(page, "time")
    page.js(
        "const d = document.getElementById('from'); d.value = '2026-11-24'; d.dispatchEvent(new Event('input'))"
    )
    assert shown(page, "#broke tbody tr") == []
    assert page.driver.current_url.endswith("#from=2026-11-24")
    page.open("time.html#find=patches&from=2026-11-23")
    assert len(shown(page, "#broke tbody tr")) == 1


def test_when_did_hardware_last_run_gspo(page: Browser) -> None:
    click(page, "time")
    page.one("#find").send_keys("gspo async")
    page.settle()
    (line,) = shown(page, "#hardware tbody tr")
    assert line.startswith(
        "2026-11-05 20:00 UTC 21 days ago gspo-smoke GSPO async rollout recipe gspo pass npu-1"
    )
    assert "stale: an input has changed since pins.torch_npu: '2.7.1' -> '2.9.0'" in line
    assert "measured by this machine" in line


@pytest.mark.parametrize(
    ("language", "signed", "claimed", "trust"),
    [
        ("en", "signed by a2-lab", "claimed: no runner signed it", "signed by the runner a2-lab"),
        ("zh", "由 a2-lab 签名", "声称", "由执行点 a2-lab 签名"),
    ],
)
def test_whose_hardware_ran_it_signed_or_claimed(
    page: Browser, lab_report: Path, language: str, signed: str, claimed: str, trust: str
) -> None:
    lab = Browser(page.driver, lab_report)
    lab.js("localStorage.setItem('npu-matrix-language', arguments[0])", language)
    lab.open("time.html")
    lab.settle()
    lines = shown(lab, "#hardware tbody tr")
    (ours,) = [line for line in lines if "GSPO async rollout" in line]
    (theirs,) = [line for line in lines if "gpt-oss-20b GRPO" in line]
    assert "a2-lab" in ours
    assert "a2-lab" in theirs
    assert signed in ours
    assert claimed in theirs
    # A claim is not believed: the square stays without hardware.
    lab.open("index.html")
    tiles = lab.js(
        "return [...document.querySelectorAll('#rows tr')].map((row) => row.querySelector('td:last-child .tile .hidden').textContent)"
    )
    assert "hardware" in tiles[0] or "硬件" in tiles[0]
    assert "hardware" not in tiles[1]
    assert "硬件" not in tiles[1]
    lab.open("cells/gspo-async.html#check-gspo-smoke")
    lab.settle()
    assert trust in lab.one("#check-gspo-smoke").text
    bars = lab.js(
        "return [...document.querySelectorAll('#check-gspo-smoke .timeline g')].map((g) => g.getAttribute('class'))"
    )
    assert bars[-1] == "m-pass e-hardware"
    lab.open("cells/gptoss-20b-grpo.html#check-gspo-smoke")
    bars = lab.js(
        "return [...document.querySelectorAll('#check-gspo-smoke .timeline g')].map((g) => g.getAttribute('class'))"
    )
    assert "m-pass e-hardware" not in bars[2:]
    lab.js("localStorage.clear()")
    assert lab.console_messages() == []


def test_who_owns_this_failure(page: Browser) -> None:
    page.driver.find_element("xpath", "//table[@id='grid']//a[.//b[text()='GSPO async rollout']]").click()
    page.wait_for_address("cells/gspo-async.html")
    page.driver.find_element("xpath", "//nav[@class='strip']//a[starts-with(@href, '#check-loss')]").click()
    page.wait_for_address("cells/gspo-async.html#check-loss")
    owner = page.one("#check-loss .expectation a")
    assert owner.text == "numerics-team"
    owner.click()
    page.wait_for_address("owners.html#find=loss-entropy")
    (line,) = shown(page, "table.events tbody tr")
    assert "closed as last seen 2026-11-21 00:00 UTC: The entropy term is wrong" in line
    assert "2027-03-31" in line
    draft = page.driver.find_element("xpath", "//tr[not(@hidden)]//a[@lang='en']")
    draft.click()
    page.wait_for_address("drafts/gspo-async-loss.en.txt")
    assert "Minimal reproduction" in page.one("body").text


def test_what_is_better_and_worse_since_a_day(page: Browser) -> None:
    click(page, "changes")
    page.js(
        "const d = document.getElementById('day'); d.value = '2026-11-20'; d.dispatchEvent(new Event('input'))"
    )
    assert "since 2026-11-20, by the last verdicts of all runs" in page.one("#headline").text
    broken = shown(page, "#compared [data-turn='newly broken'] tbody tr")
    assert len(broken) == 2
    assert all(row.startswith("patches") for row in broken)
    assert page.driver.current_url.endswith("#since=2026-11-20")


def test_an_entry_of_the_feed_opens_what_changed_in_its_run(page: Browser, report: Path) -> None:
    atom = "{http://www.w3.org/2005/Atom}"
    entries = ET.parse(report / "changes.atom").iter(f"{atom}entry")
    (broke,) = [
        one for one in entries if "newly broken: patches of" in (one.findtext(f"{atom}content") or "")
    ]
    link = broke.find(f"{atom}link")
    assert link is not None
    page.open(link.get("href"))
    rows = shown(page, "#compared [data-turn='newly broken'] tbody tr")
    assert [row.split()[0] for row in rows] == ["patches", "patches"]
    assert "20261123T000000" in page.one("#headline").text


def test_a_known_failure_is_not_red_in_its_history(page: Browser) -> None:
    page.open("cells/gspo-async.html#check-loss")
    bars = page.js(
        "return [...document.querySelectorAll('#check-loss .timeline g')].map((g) => g.textContent)"
    )
    assert any(bar.startswith("unexpected failure, not expected then, expected now") for bar in bars)
    assert bars[-1].startswith("known failure")


@pytest.mark.parametrize("name", ["time.html", "owners.html", "changes.html", "cells/gspo-async.html"])
def test_the_pages_are_accessible_and_fit_a_phone(page: Browser, name: str) -> None:
    if axe_core() is None:
        pytest.skip("axe-core is not installed")
    for width, dark in ((1350, False), (360, True)):
        page.open(name, width=width, dark=dark)
        assert violations(page) == []
        assert page.js("return document.documentElement.scrollWidth") <= width


#: Two English words in a row, in a text that the language switch translates.
ENGLISH = """
const found = [];
const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  const skipped = "[translate=no], code, .prose, option, .reasons li, .resulthead .muted";
  if (/[a-z]{2,} [a-z]{2,}/.test(node.nodeValue) && !node.parentElement.closest(skipped) && node.parentElement.checkVisibility()) found.push(node.nodeValue);
}
return found;
"""


@pytest.mark.parametrize("name", ["time.html", "owners.html", "changes.html", "cells/gspo-async.html"])
def test_no_sentence_is_half_in_english(page: Browser, lab_report: Path, name: str) -> None:
    lab = Browser(page.driver, lab_report)
    for window in (page, lab):
        window.open(f"{name}#lang=zh")
        window.settle()
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(page.driver, 10).until(
            lambda at: at.execute_script("return Boolean(window.NPU_MATRIX_REASONS)")
        )
        window.settle()
        # What the checks of this world say is no text of ours.
        said = (
            *("hunks do not apply", "no wheel for", "did not respond", "host has no NPU", "moves the file"),
            *("differs by", "differs from the reference", " the log"),
        )
        assert [text for text in window.js(ENGLISH) if not any(part in text for part in said)] == []
        window.js("localStorage.clear()")


def test_the_first_sentences_are_in_chinese_too(page: Browser) -> None:
    page.open("index.html#lang=zh")
    page.settle()
    assert not re.search("[a-z]{3,}", page.one("#headline").text), page.one("#headline").text


def test_the_answers_are_in_chinese_too(page: Browser) -> None:
    page.open("time.html")
    page.one("#language").click()
    page.settle()
    assert page.js("return document.documentElement.lang") == "zh-CN"
    assert page.one("#headline").text.startswith("最近 7 天有 2 项单元检查失败")
    assert "输入变了" in page.one("#broke tbody").text
    assert "verl_tree.commit: '5a2e0b1c00…' -> '9f3d77aa00…'" in page.one("#broke tbody").text, "data stays"
    page.open("owners.html")
    assert "没有负责人的失败" in page.one("#headline").text
    page.one("#language").click()
    assert page.one("#headline").text.startswith("Failures without an owner: 1.")
