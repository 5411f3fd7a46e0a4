"""History by (cell, check): it survives changed inputs, tells runs apart, and names the first bad one."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import Runs, key_of

from harness.outcome import Evidence, Status
from harness.report.formats.badge import evidence_badge
from harness.report.formats.feed import atom
from harness.report.model.changes import RunChangeKind, compare, run_change_kind
from harness.report.model.report_model import build_model
from harness.report.model.streak import EarlierVerdict, HistoryEntry, streak_of

PASS, FAIL, NOT_RUN, BLOCKED = Status.PASS, Status.FAIL, Status.NOT_RUN, Status.BLOCKED


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    made.ledger.close()


def test_a_changed_input_keeps_the_history(runs: Runs) -> None:
    first = runs.go({"cell": "torch 1"}, {"cell": True})
    second = runs.go({"cell": "torch 2"}, {"cell": True})
    last = runs.go({"cell": "torch 3"}, {"cell": False})
    inputs = runs.inputs({"cell": "torch 3"}, last)
    history = inputs.results[0].history
    assert [(past.run_id, past.verdict.status) for past in history] == [(first, PASS), (second, PASS)]
    assert [past.verdict.key for past in history] == [key_of("torch 1"), key_of("torch 2")]
    model = build_model(inputs)
    result = model.rows[0].results["probe"]
    assert result.change == "broken"
    streak = model.streak(result)
    assert streak
    assert (streak.runs, streak.since_run, streak.until_run) == (0, last, second)


def test_each_run_that_reused_an_outcome_has_its_verdict(runs: Runs) -> None:
    first = runs.go({"cell": "torch 1"}, {"cell": False})
    second = runs.go({"cell": "torch 1"})
    last = runs.go({"cell": "torch 1"})
    model = build_model(runs.inputs({"cell": "torch 1"}, last))
    result = model.rows[0].results["probe"]
    assert [(past.run_id, past.reused) for past in result.history] == [(first, False), (second, True)]
    assert result.change == ""
    streak = model.streak(result)
    assert streak
    assert (streak.runs, streak.since_run, streak.before) == (2, first, None)


def test_a_later_outcome_is_not_the_verdict_of_an_earlier_run(runs: Runs) -> None:
    runs.go({"cell": "torch 1"}, left={"cell": (BLOCKED, "resolve did not pass")})
    runs.go({"cell": "torch 1"}, finished=False)
    last = runs.go({"cell": "torch 1"}, {"cell": True})
    result = build_model(runs.inputs({"cell": "torch 1"}, last)).rows[0].results["probe"]
    assert [past.verdict.status for past in result.history] == [BLOCKED, NOT_RUN]


def test_a_run_without_an_outcome_does_not_hide_a_change(runs: Runs) -> None:
    runs.go({"cell": "torch 1"}, {"cell": True})
    runs.go({"cell": "torch 2"}, left={"cell": (NOT_RUN, "no NPU")})
    last = runs.go({"cell": "torch 3"}, {"cell": False})
    assert build_model(runs.inputs({"cell": "torch 3"}, last)).rows[0].results["probe"].change == "broken"


DAY = 86400.0


def test_with_a_clock_set_back_a_second_failure_is_not_newly_broken(runs: Runs) -> None:
    runs.go({"cell": "torch 1"}, {"cell": True})
    broken = runs.go({"cell": "torch 2"}, {"cell": False})
    runs.now -= DAY
    last = runs.go({"cell": "torch 3"}, {"cell": False})
    model = build_model(runs.inputs({"cell": "torch 3"}, last))
    result = model.rows[0].results["probe"]
    assert result.change == ""
    streak = model.streak(result)
    assert streak
    assert (streak.runs, streak.since_run) == (1, broken)
    assert any(f"run {last} started" in note for note in model.inputs.notes), "the clock is reported"


def test_with_a_clock_set_back_a_fix_does_not_pass_since_a_run_before_the_failure(runs: Runs) -> None:
    passed = runs.go({"cell": "torch 1"}, {"cell": True})
    broken = runs.go({"cell": "torch 2"}, {"cell": False})
    runs.now -= DAY
    last = runs.go({"cell": "torch 3"}, {"cell": True})
    model = build_model(runs.inputs({"cell": "torch 3"}, last))
    result = model.rows[0].results["probe"]
    assert [past.run_id for past in result.history] == [passed, broken]
    assert result.change == "fixed"
    streak = model.streak(result)
    assert streak
    assert (streak.runs, streak.since_run, streak.until_run) == (0, last, broken)
    entries = ET.fromstring(atom(model)).findall("{*}entry/{*}title")
    assert [title.text for title in entries] == [f"1 fixed (run {last})", f"1 newly broken (run {broken})"]


def test_with_a_clock_set_back_an_earlier_run_does_not_show_what_a_later_one_recorded(runs: Runs) -> None:
    first = runs.go({"cell": "torch 1"}, left={"cell": (NOT_RUN, "no NPU")})
    reused = runs.go({"cell": "torch 1"})
    runs.now -= DAY
    last = runs.go({"cell": "torch 1"}, {"cell": True})
    history = runs.inputs({"cell": "torch 1"}, last).results[0].history
    assert [(past.run_id, past.verdict.status) for past in history] == [(first, NOT_RUN), (reused, NOT_RUN)]
    assert runs.inputs({"cell": "torch 1"}, reused).results[0].verdict.outcome is None


def test_a_report_since_a_run_compares_with_that_run_whatever_the_clock_said(runs: Runs) -> None:
    first = runs.go({"cell": "torch 1"}, {"cell": True})
    runs.now -= DAY
    last = runs.go({"cell": "torch 2"}, {"cell": False})
    earlier = runs.inputs({"cell": "torch 2"}, last, first).earlier
    assert earlier
    assert earlier.run_id == first
    changes = build_model(runs.inputs({"cell": "torch 2"}, last, first)).changes
    assert [change.turn for change in changes] == [RunChangeKind.BROKEN]


def test_outcomes_merged_from_another_machine_are_history_too(runs: Runs) -> None:
    runs.record("torch 1", "elsewhere", good=False)
    last = runs.go({"cell": "torch 1"}, {"cell": True})
    history = runs.inputs({"cell": "torch 1"}, last).results[0].history
    assert [(past.run_id, past.verdict.status) for past in history] == [("elsewhere", FAIL)]


def test_the_report_of_an_old_run_contains_no_later_run(runs: Runs) -> None:
    first = runs.go({"cell": "torch 1"}, {"cell": True})
    second = runs.go({"cell": "torch 2"}, {"cell": False})
    for number in range(25):
        runs.go({"cell": f"torch {3 + number}"}, {"cell": True})
    inputs = runs.inputs({"cell": "torch 2"}, second)
    assert [past.run_id for past in inputs.results[0].history] == [first]
    assert inputs.earlier
    assert inputs.earlier.run_id == first


def test_a_report_is_compared_with_the_last_run_that_planned_most_of_its_checks(runs: Runs) -> None:
    first = runs.go({"old": "a", "cell": "torch 1", "lost": "b"}, {"old": True, "cell": True, "lost": True})
    runs.go({"other": "x"}, {"other": True})
    now = {"cell": "torch 2", "lost": "c", "new": "d"}
    last = runs.go(now, {"cell": False, "new": True}, left={"lost": (NOT_RUN, "no NPU")})
    model = build_model(runs.inputs(now, last))
    assert model.inputs.earlier
    assert model.inputs.earlier.run_id == first
    said = {(change.cell, change.turn) for change in model.changes}
    assert said == {
        ("cell", RunChangeKind.BROKEN),
        ("lost", RunChangeKind.LOST),
        ("new", RunChangeKind.ADDED),
        ("old", RunChangeKind.REMOVED),
    }
    assert model.changes[0].causes == ("pins: 'torch 1' -> 'torch 2'",)
    assert not model.changes[0].same_inputs


def test_a_change_with_equal_inputs_is_reported_as_such(runs: Runs) -> None:
    first = runs.go({"cell": "torch 1"}, {"cell": True})
    runs.go({"cell": "torch 1"}, {"cell": True})
    last = runs.go({"cell": "torch 1"}, {"cell": False})
    model = build_model(runs.inputs({"cell": "torch 1"}, last, since=first))
    assert model.inputs.earlier
    assert model.inputs.earlier.run_id == first
    assert [(change.turn, change.same_inputs, change.causes) for change in model.changes] == [
        (RunChangeKind.BROKEN, True, ())
    ]


def verdict(status: Status, evidence: Evidence | None = Evidence.SIMULATED) -> EarlierVerdict:
    return EarlierVerdict(status=status, evidence=evidence)


@pytest.mark.parametrize(
    ("before", "after", "turn"),
    [
        (verdict(PASS), verdict(FAIL), RunChangeKind.BROKEN),
        (verdict(NOT_RUN), verdict(Status.INCONCLUSIVE), RunChangeKind.BROKEN),
        (verdict(FAIL), verdict(FAIL), RunChangeKind.STILL),
        (verdict(FAIL), verdict(PASS), RunChangeKind.FIXED),
        (verdict(PASS), verdict(Status.ERROR), RunChangeKind.LOST),
        (verdict(FAIL), verdict(Status.STALE), RunChangeKind.LOST),
        (verdict(NOT_RUN), verdict(BLOCKED), None),
        (verdict(PASS), verdict(PASS), None),
        (verdict(PASS, Evidence.HARDWARE), verdict(PASS), RunChangeKind.WEAKER),
        (verdict(PASS), verdict(PASS, Evidence.HARDWARE), RunChangeKind.GAINED),
        (verdict(BLOCKED), verdict(PASS), RunChangeKind.GAINED),
        (None, verdict(FAIL), RunChangeKind.ADDED),
        (verdict(FAIL), None, RunChangeKind.REMOVED),
    ],
)
def test_run_change_kind(
    before: EarlierVerdict | None, after: EarlierVerdict | None, turn: RunChangeKind | None
) -> None:
    assert run_change_kind(before, after) is turn


answers = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xy")),
    st.builds(EarlierVerdict, status=st.sampled_from(Status), evidence=st.sampled_from([None, *Evidence])),
)


@given(before=answers, after=answers)
def test_every_failure_and_every_lost_outcome_is_a_change(before: dict, after: dict) -> None:
    changes = {(change.cell, change.check): change.turn for change in compare(before, after)}
    for pair, now in after.items():
        if now.status in {FAIL, Status.INCONCLUSIVE}:
            assert changes[pair] in {RunChangeKind.BROKEN, RunChangeKind.STILL, RunChangeKind.ADDED}
        if pair in before and before[pair].status is PASS and now.status is not PASS:
            assert changes[pair] in {RunChangeKind.BROKEN, RunChangeKind.LOST}
    assert {
        pair for pair, turn in changes.items() if turn is RunChangeKind.REMOVED
    } == before.keys() - after.keys()
    assert compare(after, after) == tuple(
        change for change in compare(after, after) if change.turn is RunChangeKind.STILL
    )


@given(st.lists(st.sampled_from(Status)), st.sampled_from([PASS, FAIL]))
def test_a_streak_counts_equal_verdicts_at_the_end_of_the_history(earlier: list[Status], now: Status) -> None:
    history = [
        HistoryEntry(time=float(n), run_id=str(n), verdict=EarlierVerdict(status=status))
        for n, status in enumerate(earlier)
    ]
    streak = streak_of(history, now, this_run="now", now=99.0)
    answers = [status for status in earlier if status in {PASS, FAIL, Status.INCONCLUSIVE}]
    if not answers:
        assert streak is None
        return
    assert streak is not None
    assert answers[len(answers) - streak.runs :] == [now] * streak.runs
    assert streak.before is None or streak.before is not now
    assert (streak.before is None) == (streak.runs == len(answers))


def test_evidence_that_was_edited_in_the_ledger_is_bounded_in_history_comparison_and_badges(
    runs: Runs,
) -> None:
    before = runs.go({"cell": "torch 1"}, {"cell": True}, evidence=Evidence.HARDWARE)
    last = runs.go({"cell": "torch 2"}, {"cell": True}, evidence=Evidence.HARDWARE)
    inputs = runs.inputs({"cell": "torch 2"}, last)
    (past,) = inputs.results[0].history
    assert past.verdict.evidence is Evidence.STATIC
    assert inputs.earlier
    assert inputs.earlier.run_id == before
    assert inputs.earlier.verdicts["cell", "probe"].evidence is Evidence.STATIC
    model = build_model(inputs)
    assert model.ran[Evidence.HARDWARE] == 0
    assert evidence_badge(model, Evidence.HARDWARE).text == "not run"
