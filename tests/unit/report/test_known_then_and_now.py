"""A history shows a failure as it was judged: expected by the matrix of that time, by that of today, or both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from report_runs import Runs, expectation

from harness.report.model.marks import Mark
from harness.report.model.report_inputs import ReportResult
from harness.report.model.streak import Foreseen
from harness.report.pages.timeline import timeline_svg
from harness.verdict.verdict import ExpectedFailure

TODAY = ExpectedFailure(id="known-cell", state="fail", reason="the upstream is wrong", source="s")
PINS = {"cell": "torch 1"}


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    made.ledger.close()


def result(runs: Runs, last: str, expected: ExpectedFailure | None) -> ReportResult:
    return runs.inputs(PINS, last, expected=expected).results[0]


def test_a_known_failure_is_known_in_its_history(runs: Runs) -> None:
    runs.go(PINS, {"cell": False}, expected=(expectation("cell"),))
    last = runs.go(PINS, {"cell": False}, expected=(expectation("cell"),))
    found = result(runs, last, TODAY)
    assert [(past.mark, past.foreseen) for past in found.history] == [
        (Mark.KNOWN_FAIL, Foreseen.THEN_AND_NOW)
    ]
    drawn = timeline_svg(found)
    assert "m-known-fail" in drawn
    assert "m-fail" not in drawn


def test_a_failure_that_was_not_expected_then_stays_red_although_it_is_expected_now(runs: Runs) -> None:
    runs.go(PINS, {"cell": False})
    last = runs.go(PINS, {"cell": False}, expected=(expectation("cell"),))
    found = result(runs, last, TODAY)
    assert [(past.mark, past.foreseen) for past in found.history] == [(Mark.FAIL, Foreseen.NOW)]
    assert "unexpected failure, not expected then, expected now" in timeline_svg(found)


def test_a_failure_that_was_expected_then_stays_known_after_its_expectation_was_removed(runs: Runs) -> None:
    runs.go(PINS, {"cell": False}, expected=(expectation("cell"),))
    last = runs.go(PINS, {"cell": False})
    found = result(runs, last, None)
    assert [(past.mark, past.foreseen) for past in found.history] == [(Mark.KNOWN_FAIL, Foreseen.THEN)]
    assert found.mark is Mark.FAIL
    assert "known failure, expected then, not now" in timeline_svg(found)


def test_an_expectation_that_had_expired_by_then_does_not_count(runs: Runs) -> None:
    runs.go(PINS, {"cell": False}, expected=(expectation("cell", until="2026-01-01"),))
    runs.go(PINS, {"cell": False}, expected=(expectation("cell", until="2099-01-01"),))
    last = runs.go(PINS, {"cell": False})
    marks = [past.mark for past in result(runs, last, None).history]
    assert marks == [Mark.FAIL, Mark.KNOWN_FAIL]


def test_a_failure_for_another_reason_was_not_expected(runs: Runs) -> None:
    other = expectation("cell", because=("another reason",))
    runs.go(PINS, {"cell": False}, expected=(other,))
    last = runs.go(PINS, {"cell": False})
    assert [past.mark for past in result(runs, last, None).history] == [Mark.FAIL]


def test_a_pass_that_was_expected_to_fail_is_shown_as_unexpected(runs: Runs) -> None:
    runs.go(PINS, {"cell": True}, expected=(expectation("cell"),))
    last = runs.go(PINS, {"cell": True})
    assert [past.mark for past in result(runs, last, None).history] == [Mark.UNEXPECTED_PASS]


def test_a_plan_that_stored_no_expectations_says_so(runs: Runs) -> None:
    runs.go(PINS, {"cell": False}, expected=None)
    last = runs.go(PINS, {"cell": False}, expected=(expectation("cell"),))
    found = result(runs, last, TODAY)
    assert [past.foreseen for past in found.history] == [Foreseen.NOW_ONLY_KNOWN]
    assert "whether it was expected then is not recorded" in timeline_svg(found)
