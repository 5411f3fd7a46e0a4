"""Reports of odd inputs in a real browser: they fit the screen, are accessible, raise no error, and are green
only where all that was planned was answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# The browser is the one of these tests.
from test_report_browser import Browser, driver, samples, violations  # noqa: F401

from harness.outcome import Evidence, Status
from harness.report.model.report_inputs import ReportInputs, ReportResult
from harness.report.model.report_model import build_model
from harness.report.model.streak import History
from harness.report.publish.publish import render_all
from harness.verdict.verdict import Standing

pytestmark = pytest.mark.browser
PAGES = ("index.html", "time.html", "owners.html", "changes.html")
#: Steps of a ladder whose text is wider than they are.
OVERFULL = (
    "return [...document.querySelectorAll('.ladder a')].filter((step) => step.scrollWidth > step.clientWidth + 1)"
    ".map((step) => step.innerText)"
)
#: Without a place to break a line.
LONG = "averyverylongnamewithoutanyplacetobreak" * 8
RIGHT_TO_LEFT = "حزمة التدريب שלום"


def with_results(inputs: ReportInputs, change: Callable[[ReportResult], ReportResult]) -> ReportInputs:
    return replace(inputs, results=tuple(map(change, inputs.results)))


def of_one_cell(inputs: ReportInputs) -> ReportInputs:
    cell = inputs.cells[0]
    results = tuple(one for one in inputs.results if one.cell_id == cell.id)
    return replace(inputs, cells=(cell,), results=results, planned={}, earlier=None, runs=())


def all_on_hardware(inputs: ReportInputs) -> ReportInputs:
    def passed(result: ReportResult) -> ReportResult:
        found: ReportResult = samples().changed(
            result,
            status=Status.PASS,
            evidence=Evidence.HARDWARE,
            standing=Standing.AS_EXPECTED,
            reasons=(),
            remedies=(),
        )
        return found

    run = replace(inputs.run, exit_code=0)
    return with_results(replace(inputs, planned={}, earlier=None, run=run), passed)


def nothing_ran(inputs: ReportInputs) -> ReportInputs:
    def idle(result: ReportResult) -> ReportResult:
        found: ReportResult = samples().changed(
            result,
            status=Status.NOT_RUN,
            evidence=None,
            standing=Standing.AS_EXPECTED,
            reasons=("no NPU on this host",),
            remedies=(),
        )
        return replace(found, history=History())

    return with_results(replace(inputs, planned={}, earlier=None, runs=()), idle)


def long_names(inputs: ReportInputs) -> ReportInputs:
    cells = tuple(
        replace(
            cell,
            title=LONG + cell.id,
            stack=LONG,
            recipe=LONG,
            axes={axis: value + "f" * 80 for axis, value in cell.axes.items()},
        )
        for cell in inputs.cells
    )
    return with_results(replace(inputs, cells=cells), lambda one: _with_reason(one, f"/{LONG}/{LONG}.py"))


def right_to_left(inputs: ReportInputs) -> ReportInputs:
    cells = tuple(replace(cell, title=f"{RIGHT_TO_LEFT} {cell.title}") for cell in inputs.cells)
    return with_results(replace(inputs, cells=cells), lambda one: _with_reason(one, RIGHT_TO_LEFT))


def _with_reason(result: ReportResult, reason: str) -> ReportResult:
    if result.verdict.status is Status.PASS:
        return result
    found: ReportResult = samples().changed(result, reasons=(reason,), remedies=(reason,))
    return found


def clocks_in_the_future(inputs: ReportInputs) -> ReportInputs:
    def later(result: ReportResult) -> ReportResult:
        outcome = result.verdict.outcome
        if outcome is None:
            return result
        outcome = replace(outcome, started=inputs.generated + 4e8, finished=inputs.generated + 5e8)
        return replace(result, verdict=replace(result.verdict, outcome=outcome))

    return with_results(replace(inputs, run=replace(inputs.run, started=inputs.generated + 3e8)), later)


def clocks_out_of_range(inputs: ReportInputs) -> ReportInputs:
    return replace(inputs, generated=-5e12, run=replace(inputs.run, started=9e18))


def on_all_evidence(inputs: ReportInputs) -> ReportInputs:
    """Each cell has checks of every kind of evidence, one of each kind failed: its ladder has all its steps."""
    kinds = [*Evidence, *Evidence]

    def judged(result: ReportResult) -> ReportResult:
        place = [check.name for check in inputs.checks].index(result.check)
        found: ReportResult = samples().changed(
            result,
            status=Status.FAIL if place % 2 else Status.PASS,
            evidence=kinds[place % len(kinds)],
            standing=Standing.UNEXPECTED if place % 2 else Standing.AS_EXPECTED,
        )
        return found

    return with_results(replace(inputs, planned={}), judged)


def no_results(inputs: ReportInputs) -> ReportInputs:
    return replace(inputs, results=(), planned={}, earlier=None, runs=())


def nothing_at_all(inputs: ReportInputs) -> ReportInputs:
    return ReportInputs(generated=inputs.generated)


ODD: dict[str, Callable[[ReportInputs], ReportInputs]] = {
    found.__name__: found
    for found in (
        of_one_cell,
        all_on_hardware,
        nothing_ran,
        long_names,
        right_to_left,
        clocks_in_the_future,
        clocks_out_of_range,
        on_all_evidence,
        no_results,
        nothing_at_all,
    )
}
GREEN = {"all_on_hardware"}


def opened(driver: Any, folder: Path, odd: Callable[[ReportInputs], ReportInputs]) -> tuple[Browser, Any]:  # noqa: F811
    """A browser on the pages of an odd input, and their model."""
    model = build_model(odd(samples().sample_inputs()))
    render_all(model, folder / "reports")
    return Browser(driver, folder / "reports"), model


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_inputs_make_a_whole_page(
    driver: Any,  # noqa: F811 - the imported fixture
    tmp_path: Path,
    odd: Callable[[ReportInputs], ReportInputs],
) -> None:
    browser, model = opened(driver, tmp_path, odd)
    browser.open()
    browser.js("localStorage.clear(); sessionStorage.clear()")
    browser.console_messages()
    # Frame and headline: green only if everything planned was answered as expected.
    browser.open()
    green = "s-ok" in browser.one(".state").get_attribute("class")
    assert green is (odd.__name__ in GREEN)
    cells = [f"cells/{row.slug}.html" for row in model.rows[:1]]
    for page in (*PAGES, *cells):
        for width, language in ((1350, "en"), (390, "zh")):
            browser.open(f"{page}#lang={language}", width=width)
            browser.settle()
            assert browser.js("return document.documentElement.scrollWidth") <= width, (page, width)
            assert browser.js(OVERFULL) == [], (page, width)
            assert violations(browser) == [], (page, width)
    assert browser.console_messages() == []


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_inputs_are_read_without_scripts(
    driver: Any,  # noqa: F811 - the imported fixture
    tmp_path: Path,
    odd: Callable[[ReportInputs], ReportInputs],
) -> None:
    browser, model = opened(driver, tmp_path, odd)
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(width=390)
        shown = browser.one("main").text
        assert model.headline[:40] in " ".join(shown.split())
        # The commands and filters that need scripts are not shown.
        assert not any(node.is_displayed() for node in browser.all(".needs-js"))
        assert len(browser.all("#rows tr")) == len(model.rows)
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
