"""The short summary is never longer than 4 KB, and says what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from report_samples import sample_inputs
from weeks_of_runs import inputs_after_weeks, weeks_of_runs

from harness.report.formats.weekly_summary import LIMIT, weekly_summary
from harness.report.model.report_inputs import ReportInputs
from harness.report.model.report_model import ReportModel, build_model

KB = 4096


@pytest.fixture(scope="module")
def weeks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReportInputs]:
    ledger, last = weeks_of_runs(tmp_path_factory.mktemp("weekly"))
    yield inputs_after_weeks(ledger, last)
    ledger.close()


def many(copies: int, reason: str) -> ReportModel:
    """The sample with many cells, each with failures of its own."""
    sample = sample_inputs()
    cells, results = [], []
    for number in range(copies):
        cells += [
            replace(one, id=f"{one.id}-{number}", title=f"{one.title} {number}") for one in sample.cells
        ]
        for result in sample.results:
            verdict = replace(
                result.verdict,
                cell_id=f"{result.cell_id}-{number}",
                reasons=tuple(f"{one} {number} {reason}" for one in result.verdict.reasons),
            )
            entry = replace(result.entry, cell_id=verdict.cell_id)
            results.append(replace(result, entry=entry, verdict=verdict))
    planned = {cell.id: sample.planned.get(cell.id.rpartition("-")[0], ()) for cell in cells}
    inputs = replace(sample, cells=tuple(cells), results=tuple(results), planned=planned, earlier=None)
    return build_model(inputs)


def test_it_says_what_broke_this_week_and_on_which_hardware(weeks: ReportInputs) -> None:
    text = weekly_summary(build_model(weeks))
    assert "**Broke in the last 7 days** (1)" in text
    assert "patches of GSPO async rollout and 1 more" in text
    assert "verl\\_tree.commit" in text
    assert "**Last runs on hardware** (2)" in text
    assert "gspo-smoke of GSPO async rollout, stale" in text
    assert "Left out" not in text
    assert len(text.encode()) < KB


@pytest.mark.parametrize("reason", ["", "x" * 5000, "界" * 3000, "`|<>&*_[]" * 500])
def test_the_limit_is_hard_on_a_huge_matrix_and_what_is_cut_is_named(reason: str) -> None:
    model = many(60, reason)
    text = weekly_summary(model)
    assert len(text.encode()) <= LIMIT < KB
    left_out = next(line for line in text.splitlines() if line.startswith("Left out"))
    needs = re.search(r"(\d+) of (\d+) under 'Needs attention'", left_out)
    assert needs
    assert int(needs[2]) == len(model.attention)
    shown = text.count(
        "\n- ", text.index("**Needs attention**"), text.index("\n\n", text.index("**Needs")) + 9999
    )
    assert shown >= 1
    assert model.headline.split()[0] in text.splitlines()[0]


@pytest.mark.parametrize("text", ["\ud800", "\u202e", "<script>", "@everyone", "]("])
def test_hostile_texts_stay_text(text: str) -> None:
    sample = sample_inputs()
    cells = tuple(replace(cell, title=text * 50) for cell in sample.cells)
    shown = weekly_summary(build_model(replace(sample, cells=cells)))
    assert "<script>" not in shown
    assert "\u202e" not in shown
    assert len(shown.encode("utf-8", "backslashreplace")) <= LIMIT
