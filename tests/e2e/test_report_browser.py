"""Tests of the report in a real browser: content, keyboard, deep links, themes and small screens.

They need Debian's chromium and chromium-driver, and selenium, and are skipped without them. The accessibility
tests also need axe-core: install the package axe-core-python, or set `NPU_MATRIX_AXE` to a newer axe.min.js.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from missing_programs import missing, required_program

from harness.errors import InputError
from harness.ledger.plan_record import SkipCause
from harness.outcome import Status
from harness.report.model.report_model import build_model
from harness.report.publish.publish import render_all
from harness.report.query.grid_query import select
from harness.verdict.plan_verdicts import REMEDIES

pytestmark = pytest.mark.browser
SAMPLES = Path(__file__).parents[1] / "unit" / "report" / "report_samples.py"
DOCS = Path(__file__).parents[2] / "docs"
VECTORS = json.loads(SAMPLES.with_name("query_vectors.json").read_text(encoding="utf-8"))
PIECES = (
    *("verl", "torch_npu", "cann", "soc", "python", "status", "evidence", "check", "is", "tier", "id"),
    *(":", ":", "=", "!=", "<", ">=", ">", " ", " ", " & ", " | ", "&", "|", "!", "(", ")", '"'),
    *("0.9", "0.8.0", "2.7.1", "8.3.RC1", "8.5", "3.11", "0.6.1+d62", "pass", "fail", "known", "new", "ran"),
    *("gspo", "loss", "hardware", "sim", "released", "static", "QWEN", "not-run", "—", "."),
)
#: Every check has a tile of its own.
UNFOLDED = "index.html#open=all"
PAGES = (
    "index.html",
    UNFOLDED,
    "index.html#view=runs",
    "index.html#view=torch_npu,cann",
    "index.html#lang=zh",
    "changes.html",
    "changes.html#since=20261115&now=20261119",
    "patches.html",
    "numerics.html",
    "convergence.html",
    "suites.html",
    "time.html",
    "owners.html#lang=zh",
    "cells/verl-0.9.1-sim.html",
    "cells/one-step-off-2card.html",
    "cells/gspo-async.html",
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


# Timeout of a script or of a wait.
SECONDS = 200


def axe_core() -> Path | None:
    """The axe.min.js that NPU_MATRIX_AXE names, or that of the installed package axe-core-python."""
    named = os.environ.get("NPU_MATRIX_AXE")
    if named:
        # A missing file is a mistake, so the tests must not be skipped.
        assert Path(named).is_file(), f"NPU_MATRIX_AXE names no file: {named}"
        return Path(named)
    package = importlib.util.find_spec("axe_core_python")
    for folder in package.submodule_search_locations or () if package else ():
        if (file := Path(folder) / "axe.min.js").is_file():
            return file
    return None


@functools.cache
def samples() -> Any:
    spec = importlib.util.spec_from_file_location("report_samples", SAMPLES)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("report_samples", module)
    spec.loader.exec_module(module)
    return module


class Browser:
    """A browser window with the pages of a report's folder."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def open(
        self, page: str = "index.html", *, width: int = 1440, height: int = 900, dark: bool = False
    ) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
        self.driver.get("about:blank")
        self.driver.get(f"{self.folder.as_uri()}/{page}")

    def js(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def press(self, *keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def type(self, query: str) -> None:
        self.press("/")
        box = self.one("#q")
        box.clear()
        box.send_keys(query)
        self.settle()

    def set_query(self, query: str) -> None:
        """The same as `type`, but faster, because it presses no keys."""
        self.js(
            "const q = document.getElementById('q'); q.value = arguments[0]; q.dispatchEvent(new Event('input'))",
            query,
        )
        self.settle()

    def wait_for_address(self, part: str) -> None:
        """Wait for a page whose address contains `part`."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, SECONDS).until(lambda driver: part in driver.current_url)

    def settle(self) -> None:
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def shown(self) -> list[str]:
        return self.js("return [...document.querySelectorAll('#rows small')].map((n) => n.textContent)")

    def lit(self) -> list[str]:
        return self.js(
            "return [...document.querySelectorAll('#rows a.tile:not(.dim) .hidden')].map((n) => n.textContent)"
        )

    def console_messages(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if importlib.util.find_spec("selenium") is None:
        missing("selenium is not installed")
    chromium = required_program("chromium", "chromium")
    chromedriver = required_program("chromedriver", "chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    driver.set_script_timeout(SECONDS)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site") / "reports"
    render_all(build_model(samples().sample_inputs()), target)
    return target


@pytest.fixture
def browser(driver: Any, folder: Path) -> Iterator[Browser]:
    window = Browser(driver, folder)
    window.open()
    window.js("localStorage.clear(); sessionStorage.clear()")
    window.console_messages()
    window.open(UNFOLDED)
    yield window
    assert window.console_messages() == []


def test_which_stack_for_a_host_and_what_do_i_install(browser: Browser) -> None:
    browser.open(width=1350)
    host = browser.one('.hosttable tr[data-host="Ascend910_9382 8.5.0"]')
    newest = host.find_element("css selector", ".what a")
    assert newest.text == "verl 0.9.0 as released"
    assert [step.text.split("\n")[0] for step in host.find_elements("css selector", ".step")] == [
        "static",
        "built",
        "simulated",
        "hardware",
    ]
    # Its cells are one click away, in the grid.
    host.find_element("css selector", "th a").click()
    browser.settle()
    assert browser.shown() == ["verl-0.8.0-a3", "verl-0.9.0-a3"]
    # What to install: a file of the lock or the command that makes one.
    locked = browser.one('.hosttable tr[data-host="Ascend910B3 sim"], .hosttable tr:has(.install details)')
    locked.find_element("css selector", ".install summary").click()
    assert locked.find_element("css selector", ".install .exports a, .install code").is_displayed()
    newest.click()
    browser.wait_for_address("cells/verl-0.9.0-a3.html")


def test_why_did_these_not_run(browser: Browser) -> None:
    browser.open(width=1350)
    model = build_model(samples().sample_inputs())
    section = browser.one(".unanswered")
    assert section.find_element("css selector", ".count").text == str(
        sum(one.results for one in model.unanswered)
    )
    row = section.find_element("css selector", "tbody tr")
    first = model.unanswered[0]
    assert first.reason in row.text
    row.find_element("css selector", "a").click()
    browser.settle()
    assert f'check:"{first.checks[0]}" & !ran' == browser.one("#q").get_attribute("value")
    assert browser.shown()


def test_the_frame_is_not_green_while_checks_have_no_verdict(browser: Browser) -> None:
    assert "s-ok" not in browser.one(".state").get_attribute("class")


def test_the_grid_fits_a_laptop_with_all_tiers_and_versions(browser: Browser) -> None:
    browser.open(width=1350)
    assert browser.js(
        "const box = document.getElementById('grid-box'); return box.scrollWidth <= box.clientWidth"
    )
    heads = [head.text.split("\n")[0] for head in browser.all("#head th")]
    assert heads[1:7] == ["cann", "soc", "torch_npu", "vllm_ascend", "verl", "python"]
    assert [head.split()[0] for head in heads[7:]] == ["static", "build", "numerics", "convergence"]
    # Nothing that tells rows apart is cut off.
    cut = "return [...document.querySelectorAll('#rows .cellname *, #rows .axis')].filter((n) => n.scrollWidth > n.clientWidth + 1).map((n) => n.textContent)"
    assert browser.js(cut) == []


def test_columns_are_chosen_sorted_and_grouped_and_a_link_keeps_it(browser: Browser) -> None:
    from selenium.webdriver.support.ui import Select

    browser.open(width=1350)
    browser.one('[data-sort="verl"]').click()
    assert browser.shown()[0] == "verl-0.9.1-sim"
    assert browser.one("#head th:has([data-sort=verl])").get_attribute("aria-sort") == "descending"
    Select(browser.one("#group")).select_by_value("cann")
    groups = [group.text for group in browser.all("#rows .group b")]
    assert groups[:2] == ["cann 9.0.0", "cann 8.5.0"]
    browser.one('[data-tier="numerics"]').click()
    assert browser.driver.switch_to.active_element.get_attribute("data-tier") == "numerics"
    browser.one("#columns summary").click()
    browser.one('#columns input[value="soc"]').click()
    before = [row.text for row in browser.all("#rows tr, #head th")]
    link = browser.driver.current_url.rsplit("/", 1)[1]
    browser.open(link, width=1350)
    assert [row.text for row in browser.all("#rows tr, #head th")] == before
    assert browser.all('#head [data-sort="soc"]') == []


#: The texts in sight that nobody translated: without a Chinese letter, and not marked as a name.
UNTRANSLATED = """
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode;
  const text = node.nodeValue.trim();
  const skipped = "[translate=no], code, pre, kbd, script, dialog, .hidden, .against span, .attention p, .note, .patterns li, .news li small, .open td, #language, .check, .brand, .foot, td.who, td.reason, .runfacts code, option, .reasons li";
  if (/[a-z]{2,} [a-z]{2,}/i.test(text) && !/[\u4e00-\u9fff]/.test(text) && !node.parentElement.closest(skipped) && node.parentElement.checkVisibility()) found.push(text);
}
return found;
"""


@pytest.mark.parametrize("page", ["index.html", "index.html#open=all", "changes.html"])
def test_the_pages_are_there_in_chinese_and_back(browser: Browser, page: str) -> None:
    texts = "return [...document.querySelectorAll('body, [title], [aria-label]')].map((n) => [n.innerText, n.title, n.ariaLabel])"
    browser.open(page, width=1350)
    english = browser.js(texts)
    browser.one("#language").click()
    assert browser.js("return document.documentElement.lang") == "zh-CN"
    assert browser.js(UNTRANSLATED) == []
    assert violations(browser) == []
    browser.open(page, width=1350)
    # The choice is remembered.
    assert browser.one("#language").text == "English"
    browser.one("#language").click()
    assert browser.js(texts) == english


def test_commands_in_a_remedy_are_code_in_both_languages(driver: Any, tmp_path: Path) -> None:
    inputs = samples().sample_inputs()
    remedy = REMEDIES[SkipCause.HOST]
    results = tuple(
        replace(one, verdict=replace(one.verdict, remedies=(remedy,)))
        if one.verdict.status is Status.NOT_RUN
        else one
        for one in inputs.results
    )
    render_all(build_model(replace(inputs, results=results)), tmp_path / "reports")
    browser = Browser(driver, tmp_path / "reports")
    shown = "const text = document.querySelector('.unanswered .prose'); return [text.innerText, text.querySelector('code').innerText, text.children.length]"
    browser.open("index.html#lang=en", width=1350)
    assert browser.js(shown) == [remedy.replace("`", ""), "npu-matrix ledger merge FOLDER", 1]
    browser.one("#language").click()
    chinese, command, codes = browser.js(shown)
    assert (command, codes) == ("npu-matrix ledger merge FOLDER", 1)
    assert chinese.startswith("在有这种设备的主机上")
    browser.one("#language").click()
    assert browser.js(shown)[0] == remedy.replace("`", "")


def test_a_lint_finding_is_told_in_chinese_with_its_values(driver: Any, tmp_path: Path) -> None:
    inputs = samples().sample_inputs()
    reason = (
        "error GSPO-AGG: loss_agg_mode=token-mean changes the objective, so this run does not train GSPO; "
        "verl 0.9.1 and later apply loss_agg_mode to GSPO."
    )
    remedy = "GSPO-AGG: set actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"
    (found,) = [one for one in inputs.results if (one.cell_id, one.check) == ("verl-0.9.1-sim", "lint")]
    changed = replace(found, verdict=replace(found.verdict, reasons=(reason,), remedies=(remedy,)))
    results = tuple(changed if one is found else one for one in inputs.results)
    render_all(build_model(replace(inputs, results=results)), tmp_path / "reports")
    browser = Browser(driver, tmp_path / "reports")
    browser.open("cells/verl-0.9.1-sim.html#lang=en")
    assert browser.one("#check-lint .reasons").text == reason
    browser.one("#language").click()
    browser.settle()
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 10).until(lambda _: "改变了优化目标" in browser.one("#check-lint .reasons").text)
    said = browser.one("#check-lint .reasons").text
    assert said.startswith("错误 GSPO-AGG")
    assert "loss_agg_mode=token-mean 改变了优化目标" in said
    assert "verl 0.9.1 及更高版本会把 loss_agg_mode 用于 GSPO" in said
    assert "设置 actor_rollout_ref.actor.loss_agg_mode" in browser.one("#check-lint .remedies").text
    browser.one("#language").click()
    assert browser.one("#check-lint .reasons").text == reason


def test_tables_of_measurements_have_chinese_names_and_members_keep_theirs(browser: Browser) -> None:
    browser.open("cells/one-step-off-2card.html#lang=zh")
    browser.settle()
    heads = browser.js(
        "return [...document.querySelectorAll('#check-lint .measured :is(h4, th)')].map((n) => n.textContent)"
    )
    assert heads[:4] == ["发现的问题", "规则", "位置", "严重程度"]
    names = browser.js(
        "return [...document.querySelectorAll('#check-lint .measured dt')].map((n) => n.textContent)"
    )
    assert "is verl job" in names, "the name of a member of report.json"


def test_the_script_says_texts_in_chinese_as_files_without_a_script_do(browser: Browser) -> None:
    texts = json.loads(SAMPLES.with_name("chinese_vectors.json").read_text("utf-8"))
    browser.open("index.html#lang=zh")
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser.driver, 10).until(
        lambda at: at.execute_script("return Boolean(window.NPU_MATRIX_REASONS)")
    )
    said = browser.js(
        "const language = makeLanguage(window.NPU_MATRIX_WORDS); language.withReasons(() => {}); language.set('zh');"
        "return new Promise((done) => setTimeout(() => done(arguments[0].map(language.say)), 500))",
        list(texts),
    )
    assert dict(zip(texts, said, strict=True)) == texts
    browser.js("localStorage.clear()")


def test_the_glossary_is_one_hover_away(browser: Browser) -> None:
    shown = "return getComputedStyle(arguments[0], '::after').content"
    browser.open(width=1350)
    word = browser.one('.hosts .term[data-term="stack"]')
    assert browser.js(shown, word) == "none"
    browser.js("arguments[0].focus()", word)
    assert "A cell with a name" in browser.js(shown, word)
    browser.one("#language").click()
    browser.js("arguments[0].focus()", word)
    assert "有名字的单元" in browser.js(shown, word)


def test_rows_by_runs(browser: Browser) -> None:
    from selenium.webdriver.support.ui import Select, WebDriverWait

    browser.open(width=1350)
    Select(browser.one("#view")).select_by_value("runs")
    WebDriverWait(browser.driver, SECONDS).until(lambda _: browser.all("#rows td.run"))
    assert "view=runs" in browser.driver.current_url
    model = build_model(samples().sample_inputs())
    assert len(browser.all("#head th.run")) == len(model.inputs.runs) + 1
    browser.set_query("check:gspo & id:verl-0.9.1-sim")
    [row] = browser.all("#rows tr")
    said = [
        cell.get_attribute("title").rsplit(": ", 1)[1]
        for cell in row.find_elements("css selector", ".run[title]")
    ]
    assert said[:2] == ["fail", "pass"]
    row.find_element("css selector", "a").click()
    browser.wait_for_address("cells/verl-0.9.1-sim.html#check-gspo")


def test_opens_from_a_folder_and_shows_every_cell(browser: Browser) -> None:
    model = build_model(samples().sample_inputs())
    assert browser.shown() == [row.cell.id for row in model.rows]
    assert len(browser.lit()) == model.planned
    assert browser.one("#headline").text == model.headline


def test_says_the_same_with_and_without_scripts(browser: Browser) -> None:
    text = "return [...document.querySelectorAll('#rows tr')].map((n) => n.innerText.replace(/\\s+/g, ' '))"
    labels = "return [...document.querySelectorAll('#rows a.tile')].map((n) => [n.textContent, n.ariaLabel, n.getAttribute('href')])"
    browser.open()
    with_scripts = browser.js(text), browser.js(labels)
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.open()
    assert (browser.js(text), browser.js(labels)) == with_scripts
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["query"][:40])
def test_queries_mean_here_what_they_mean_in_a_terminal(browser: Browser, vector: dict[str, Any]) -> None:
    browser.set_query(vector["query"])
    if "error" in vector:
        assert browser.one("#q-error").text == vector["error"]
        assert browser.one("#q").get_attribute("aria-invalid") == "true"
        assert len(browser.shown()) == 12
        return
    assert browser.shown() == vector["cells"]
    assert len(browser.lit()) == vector["checks"]
    cells = len(vector["cells"])
    counted = f"{cells} of 12 cells" if vector["query"].strip() else f"{cells} cells"
    checks = f"{vector['checks']} check{'s' if vector['checks'] != 1 else ''}"
    assert browser.one("#q-status").text == f"{counted}, {checks}"


def test_any_query_means_here_what_it_means_in_a_terminal(browser: Browser) -> None:
    model = build_model(samples().sample_inputs())
    draw = random.Random(5)
    for _ in range(150):
        query = "".join(draw.choices(PIECES, k=draw.randint(1, 9)))
        browser.set_query(query)
        selection, problem = None, ""
        try:
            selection = select(model, query)
        except InputError as error:
            problem = error.problems[0].what
        assert browser.one("#q-error").text == problem, query
        if selection is not None:
            assert browser.shown() == [row.cell.id for row, _ in selection.rows], query
            assert len(browser.lit()) == selection.checks, query


def test_deep_links_hold_the_state(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.type("verl:0.9")
    browser.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    link = browser.driver.current_url
    assert "q=verl%3A0.9" in link
    assert "at=verl-0.9.0-a3%2Fresolve" in link
    browser.open(link.rsplit("/", 1)[1])
    assert browser.one("#q").get_attribute("value") == "verl:0.9"
    assert browser.shown() == ["verl-0.9.1-sim", "verl-0.9.0-a3"]
    assert (
        browser.js("return document.activeElement.getAttribute('href')")
        == "cells/verl-0.9.0-a3.html#check-resolve"
    )


def test_keyboard_alone_reaches_a_log_and_comes_back(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.type("unexpected-fail & check:gspo")
    browser.press(Keys.ARROW_DOWN, Keys.END, Keys.ENTER)
    browser.wait_for_address("cells/verl-0.9.1-sim.html#check-gspo")
    assert "RuntimeError: NCCL is not available" in browser.one("#check-gspo .loglines").text
    assert "outside its band" in browser.one("#check-gspo .reasons").text
    browser.one("#back").click()
    browser.wait_for_address("/index.html#")
    assert browser.one("#q").get_attribute("value") == "unexpected-fail & check:gspo"
    browser.press(Keys.ESCAPE)
    browser.settle()
    assert len(browser.shown()) == 12
    browser.press("?")
    assert browser.one("#help").is_displayed()
    browser.press(Keys.ESCAPE)
    assert not browser.one("#help").is_displayed()


def test_counts_are_filters(browser: Browser) -> None:
    for chip in browser.all(".chip"):
        count = int(chip.find_element("css selector", "b").text)
        chip.click()
        assert len(browser.lit()) == count, chip.text
        assert chip.get_attribute("aria-pressed") == "true"
        chip.click()


def test_axis_by_axis_view_leads_back_to_the_cells(browser: Browser) -> None:
    browser.open("index.html#view=torch_npu,cann")
    table = browser.one(".pivot")
    assert "8.2.RC2" in table.text
    assert not browser.one("#grid-box").is_displayed()
    hardware = browser.one('[data-pivot=\'torch_npu="2.10.0" & cann="8.5.0"\']')
    words = hardware.find_element("css selector", ".hidden").get_attribute("textContent")
    assert "2 pass hardware" in words
    assert "3 pass static" in words
    browser.one('[data-pivot=\'torch_npu="2.7.1" & cann="8.2.RC2"\']').click()
    assert browser.shown() == ["gspo-qwen25-3b", "gspo-qwen3-30b-a3b"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_suites_by_cells_lead_to_the_failures(driver: Any, tmp_path: Path, language: str) -> None:
    render_all(build_model(samples().suite_inputs()), tmp_path / "reports")
    browser = Browser(driver, tmp_path / "reports")
    browser.open(f"index.html#lang={language}")
    from selenium.webdriver.support.ui import Select

    Select(browser.one("#view")).select_by_value("suites.html#cells")
    browser.wait_for_address("suites.html#cells")
    browser.settle()
    assert browser.one(".suitegrid tbody tr a").text.split() == (
        ["101", "of", "106", "5", "new"] if language == "en" else ["101/106", "5", "项新失败"]
    )
    browser.one(".suitegrid tbody tr a").click()
    browser.wait_for_address("suites.html#check-torch-npu-nn-verl-0.9.1-sim")
    browser.one(".turn table details summary").click()
    assert "t.py::test_101" in browser.one(".turn table details[open]").text
    assert browser.js("return document.documentElement.scrollWidth") <= 1440
    assert violations(browser) == []
    browser.js("localStorage.clear()")
    assert browser.console_messages() == []


def test_from_the_headline_to_what_changed_and_to_the_cell(browser: Browser) -> None:
    turns = browser.one(".changed .turns")
    assert turns.text.startswith("1 newly broken, 1 newly not run, 1 on weaker evidence, ")
    turns.find_element("css selector", "a").click()
    assert browser.one('.pages [aria-current="page"]').text == "changes"
    broken = browser.one("#newly-broken tbody tr")
    assert "verl_tree.version: '0.9.0' -> '0.9.1'" in broken.text
    assert [tile.text.split()[-2] for tile in broken.find_elements("css selector", ".tile")] == [
        "pass",
        "fail",
    ]
    assert "none: the same key" in browser.one("#still-broken").text
    assert "no NPU on this machine" in browser.one("#newly-not-run").text
    broken.find_element("css selector", "a").click()
    when = browser.one("#check-gspo .when")
    assert "it passed in run 20261119-0200" in when.text
    bars = when.find_elements("css selector", "svg g")
    assert [bar.get_attribute("class") for bar in bars] == [
        "m-fail e-simulated",
        "m-pass e-simulated",
        "m-fail e-simulated",
    ]
    assert len(when.find_elements("css selector", ".tick")) == 2
    assert browser.console_messages() == []


def test_what_changed_since_my_last_look(browser: Browser) -> None:
    note = browser.one("#last-look")
    assert not note.is_displayed(), "nobody has looked before"
    run = note.get_attribute("data-run")
    assert browser.js("return localStorage.getItem('npu-matrix-look')") == run
    # Days later, after more runs: the browser still knows the run that it showed.
    browser.js("localStorage.setItem('npu-matrix-look', '20261115-0200')")
    browser.open()
    note = browser.one("#last-look")
    assert note.text == "Your last look was at run 20261115-0200."
    browser.open("cells/gspo-async.html")
    browser.open()
    note = browser.one("#last-look")
    assert note.is_displayed(), "what is new stays new until the window is closed"
    note.find_element("css selector", "a").click()
    browser.wait_for_address("changes.html#since=20261115-0200")
    assert "newly broken" in browser.one("#compared").text.lower()
    assert "from 2026-11-15" in browser.one("#headline").text
    # A run that the page no longer knows was before the oldest one.
    browser.open("changes.html#since=20190101-0200")
    oldest = browser.js("return window.NPU_MATRIX_RUNS.runs[0][0]")
    assert f"run {oldest} to" in browser.one("#headline").text


def test_any_two_runs_or_commits_are_compared_by_a_link(browser: Browser) -> None:
    from selenium.webdriver.support.ui import Select

    def turned() -> dict[str, int]:
        return {
            group.get_attribute("data-turn"): int(group.find_element("css selector", ".count").text)
            for group in browser.all("#compared .turn")
        }

    browser.open("changes.html#since=20261115&now=20261119")
    assert turned() == {"newly broken": 1, "newly planned": 2}
    assert browser.one("#headline").text.startswith("1 newly broken, 2 newly planned from 2026-11-15")
    assert not browser.one("#default-changes").is_displayed()
    link = browser.one("#compared a")
    assert link.get_attribute("href").endswith("cells/verl-0.9.1-sim.html#check-grpo")
    # Commits can be compared too: the one of nine nights ago with the one of last night.
    browser.open(f"changes.html#since={9:040x}&now={1:040x}")
    assert "run 20261111-0200 to" in browser.one("#headline").text
    Select(browser.one("#then")).select_by_index(3)
    assert "since=20261117-0200" in browser.driver.current_url
    browser.one("#default-pair").click()
    assert browser.one("#default-changes").is_displayed()
    assert turned() == {}
    assert browser.console_messages() == []


def test_help_is_there_in_chinese(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.press("?")
    assert "compare versions" in browser.one("#help").text
    browser.press(Keys.ESCAPE)
    browser.one("#language").click()
    browser.press("?")
    assert "比较版本" in browser.one("#help").text
    assert "compare versions" not in browser.one("#help").text


def test_a_failure_leads_to_its_log_its_siblings_and_its_lock(browser: Browser) -> None:
    browser.open("cells/verl-0.9.1-sim.html")
    card = browser.one("#check-gspo .triage")
    assert "verl 0.7.0 or later" in card.text
    assert card.find_element("css selector", ".muted a").get_attribute("href").endswith("#check-gspo-L261")
    assert "nearest cell" not in browser.one("#check-gspo").text
    assert browser.one(".exports a").get_attribute("href").endswith("exports/verl-0.9.1-sim/requirements.txt")
    browser.open("cells/gspo-qwen25-3b.html")
    similar = browser.one("#check-resolve .similar")
    assert "resolve fails on all 2 cells with" in similar.text
    assert "cann 8.2.RC2" in similar.text
    similar.find_element("css selector", "a").click()
    browser.wait_for_address("cells/gspo-qwen3-30b-a3b.html#check-resolve")


def test_numerics_and_convergence_lead_to_their_cells(browser: Browser) -> None:
    browser.open("numerics.html")
    assert browser.one('.pages [aria-current="page"]').text == "numerics"
    assert "differs in 3 cases" in browser.one(".objective").text
    browser.one(".budgets thead a").click()
    browser.wait_for_address("#check-loss")
    browser.open("convergence.html")
    assert len(browser.all("svg.chart:not(.small)")) == 4
    browser.one("main td a").click()
    assert "#verl-0.9.1-sim-check-grpo" in browser.driver.current_url


def test_patches_lead_to_their_cells(browser: Browser) -> None:
    browser.open("patches.html")
    assert "offset +14" in browser.one(".patchgrid").text
    titles = [node.get_attribute("textContent") for node in browser.all(".heat title")]
    assert any(title.startswith("verl/nccl-guard: conflict at 9 commits") for title in titles)
    browser.one(".patchgrid tbody a").click()
    browser.wait_for_address("#check-patches")


def test_a_log_line_opens_by_its_link(browser: Browser) -> None:
    browser.open("cells/verl-0.9.1-sim.html#check-environment-L5")
    assert browser.one("#check-environment-L5").is_displayed()


@pytest.mark.parametrize(("width", "columns"), [(1440, 2), (360, 1)])
def test_the_page_of_a_cell_is_laid_out_for_its_screen(browser: Browser, width: int, columns: int) -> None:
    browser.open("cells/verl-0.9.1-sim.html", width=width)
    style = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
    assert len(browser.js(style, ".twocol", "gridTemplateColumns").split()) == columns
    # The card with the cause of a failure has a border on every screen.
    assert browser.js(style, ".triage", "borderLeftWidth") == "3px"


def test_reproduce_commands_are_copied(browser: Browser) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.open("cells/one-step-off-2card.html")
    button = browser.one("#check-lint .copy-button")
    # The button shows this text only for a moment, so the test records every text.
    watch = "window.texts = []; new MutationObserver(() => texts.push(arguments[0].textContent))"
    browser.js(f"{watch}.observe(arguments[0], {{childList: true}})", button)
    button.click()
    WebDriverWait(browser.driver, SECONDS).until(lambda _: "copied" in browser.js("return window.texts"))


def test_themes_follow_the_system_until_told_otherwise(browser: Browser) -> None:
    def dark() -> bool:
        red = browser.js("return getComputedStyle(document.body).backgroundColor")
        return int(red.split("(")[1].split(",")[0]) < 80

    assert not dark()
    browser.open(dark=True)
    assert dark()
    browser.press("t")
    assert not dark()
    browser.open(dark=True)
    assert not dark()
    browser.press("t", "t")
    assert dark()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("width", [360, 768, 1024, 1440])
def test_nothing_is_wider_than_the_screen(browser: Browser, page: str, width: int) -> None:
    browser.open(page, width=width, height=780)
    assert browser.js("return document.documentElement.scrollWidth") <= width
    if page == "index.html" and width == 360:
        tile = browser.one("#rows a.tile").rect
        assert tile["x"] + tile["width"] <= width


def test_of_a_long_list_of_cells_only_the_rows_in_view_are_drawn(driver: Any, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    module = samples()
    inputs = module.many_inputs(1_500)
    render_all(build_model(inputs), tmp_path / "reports")
    browser = Browser(driver, tmp_path / "reports")
    browser.open()
    assert len(browser.all("#rows tr")) < 120
    browser.type("c01499")
    assert browser.shown() == ["c01499"]
    browser.press(Keys.ESCAPE)
    browser.settle()
    browser.js(
        "const box = document.getElementById('grid-box'); box.scrollIntoView(); box.scrollTop = box.scrollHeight * 0.8"
    )
    browser.settle()
    assert browser.js("return document.elementFromPoint(300, 500).closest('tr')?.dataset.index > 1000")
    # The header stands still above them.
    assert browser.js(
        "return document.getElementById('head').getBoundingClientRect().top - "
        "document.getElementById('grid-box').getBoundingClientRect().top < 3"
    )
    browser.type("verl:0.9")
    assert browser.js("return document.querySelector('#rows tr').dataset.index") == "0"
    assert browser.one("#rows tr").is_displayed()
    browser.press(Keys.ESCAPE)
    browser.settle()
    browser.open("index.html#open=all&at=c01250%2Floss")
    assert browser.js("return document.activeElement.getAttribute('href')").startswith("cells/c01250.html#")
    assert browser.console_messages() == []


def test_hostile_text_does_nothing_in_a_browser(driver: Any, tmp_path: Path) -> None:
    module = samples()
    attack = "\"><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    render_all(build_model(module.poisoned_inputs(attack)), tmp_path / "reports")
    browser = Browser(driver, tmp_path / "reports")
    browser.open()
    assert browser.all("img, #rows script, main script") == []
    assert "onerror" in browser.one("#rows").text
    browser.open(browser.one("#rows th a").get_attribute("href").rsplit("/reports/", 1)[1])
    assert browser.all("main img, main script") == []
    assert "owned" not in browser.driver.title.split("<")[0]
    assert browser.console_messages() == []


def violations(browser: Browser) -> list[str]:
    """The violations that axe-core finds in the open page, with all details unfolded."""
    axe = axe_core()
    if axe is None:
        missing("axe-core is not installed (install axe-core-python, or set NPU_MATRIX_AXE)")
    for closed in browser.all("details:not([open])"):
        browser.js("arguments[0].open = true", closed)
    browser.js(axe.read_text(encoding="utf-8"))
    problems: list[str] = browser.driver.execute_async_script(
        "const done = arguments[0]; axe.run(document, {resultTypes: ['violations'], preload: false}).then((r) => done("
        "r.violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160))}`)))"
    )
    return problems


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("page", PAGES)
def test_accessibility(browser: Browser, page: str, language: str, *, dark: bool) -> None:
    browser.js("localStorage.setItem('npu-matrix-language', arguments[0])", language)
    for width in (1440, 360):
        browser.open(page, width=width, dark=dark)
        assert violations(browser) == []
    browser.js("localStorage.clear()")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("markdown_it") is None:
        missing("markdown-it-py is not installed")
    target = tmp_path_factory.mktemp("docs") / "site"
    subprocess.run([sys.executable, str(DOCS / "build.py"), str(target)], check=True, capture_output=True)
    return target


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    "name", ["index", "first-report", "decision-rule", "commands", "checks", "matrix-file"]
)
def test_the_documentation_is_accessible_and_fits_the_screen(
    driver: Any, site: Path, language: str, name: str
) -> None:
    pages = Browser(driver, site)
    for width, dark in ((1440, False), (360, True)):
        pages.open(f"{language}/{name}.html", width=width, dark=dark)
        assert violations(pages) == []
        assert pages.js("return document.documentElement.scrollWidth") <= width
        assert pages.js("return document.documentElement.lang") == language
