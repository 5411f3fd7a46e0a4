"""Questions that people bring to the report, answered by clicking, on weeks of runs of three machines.

What broke this week and why; when did hardware last run GSPO; who owns this failure.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
