"""Since when a check fails, what had changed by then, and whether it was a change, chance or a machine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from report_runs import HOUR, Runs

from harness.report.model.changes import RunChangeKind
from harness.report.model.commit_notes import own_revisions
from harness.report.model.report_model import build_model
from harness.report.model.turning_points import ChangedPart, Turn, TurnCause


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    made.ledger.close()


def turns(runs: Runs, pins: str, last: str) -> tuple[Turn, ...]:
    return runs.inputs({"cell": pins}, last).results[0].turns


def test_a_break_names_the_runs_and_the_input_that_changed(runs: Runs) -> None:
    good = runs.go({"cell": "torch 1"}, {"cell": True}, revision="a" * 40)
    bad = runs.go({"cell": "torch 2"}, {"cell": False}, revision="b" * 40)
    last = runs.go({"cell": "torch 2"}, {"cell": False})
    (turn,) = turns(runs, "torch 2", last)
    assert (turn.before.run_id, turn.after.run_id, turn.better) == (good, bad, False)
    assert (turn.before.revision, turn.after.revision) == ("a" * 40, "b" * 40)
    assert turn.cause is TurnCause.INPUTS
    assert turn.difference.changes == ("pins: 'torch 1' -> 'torch 2'",)
    assert turn.difference.parts == (ChangedPart.MATRIX,)
    assert turn.reason == "It is wrong."


def test_the_commits_of_a_break_start_at_the_last_run_that_knew_its_commit(runs: Runs) -> None:
    runs.go({"cell": "torch 0"}, {"cell": True}, revision="c" * 40)
    runs.go({"cell": "torch 1"}, {"cell": True}, revision="a" * 40)
    # A machine without a checkout.
    good = runs.go({"cell": "torch 1"}, {"cell": True}, revision="")
    runs.go({"cell": "torch 2"}, {"cell": False}, revision="b" * 40)
    last = runs.go({"cell": "torch 2"}, {"cell": False})
    (turn,) = turns(runs, "torch 2", last)
    assert (turn.before.run_id, turn.before.revision, turn.before.known_at) == (good, "", "a" * 40)
    assert own_revisions(turn) == ("a" * 40, "b" * 40)


def test_a_break_after_runs_that_knew_no_commit_has_none(runs: Runs) -> None:
    runs.go({"cell": "torch 0"}, {"cell": True}, revision="c" * 40)
    runs.go({"cell": "torch 1"}, {"cell": True}, revision="")
    last = runs.go({"cell": "torch 2"}, {"cell": False}, revision="b" * 40)
    assert [turn.before.known_at for turn in turns(runs, "torch 2", last)] == [""]


def test_a_failure_of_this_run_is_a_turn_too(runs: Runs) -> None:
    runs.go({"cell": "torch 1"}, {"cell": True})
    last = runs.go({"cell": "torch 2"}, {"cell": False})
    (turn,) = turns(runs, "torch 2", last)
    assert turn.after.run_id == last
    assert turn.cause is TurnCause.INPUTS


def test_equal_inputs_with_both_verdicts_are_flaky(runs: Runs) -> None:
    runs.go({"cell": "torch 1"}, {"cell": True}, machine="m1")
    runs.go({"cell": "torch 1"}, {"cell": False}, machine="m1")
    last = runs.go({"cell": "torch 1"}, {"cell": True}, machine="m1")
    found = turns(runs, "torch 1", last)
    assert [(turn.better, turn.cause) for turn in found] == [
        (False, TurnCause.FLAKY),
        (True, TurnCause.FLAKY),
    ]
    assert (found[0].attempts.passed, found[0].attempts.failed) == (2, 1)


def test_the_attempts_of_a_flaky_check_are_those_of_the_inputs_that_gave_both_verdicts(runs: Runs) -> None:
    runs.go({"cell": "torch 1"}, {"cell": True}, machine="m1")
    runs.go({"cell": "torch 1"}, {"cell": False}, machine="m1")
    last = runs.go({"cell": "torch 2"}, {"cell": True}, machine="m1")
    turn = turns(runs, "torch 2", last)[-1]
    assert turn.cause is TurnCause.FLAKY
    assert (turn.attempts.passed, turn.attempts.failed) == (1, 1)


def test_a_change_of_a_flaky_check_is_not_called_a_break(runs: Runs) -> None:
    runs.go({"cell": "torch 1"}, {"cell": False}, machine="m1")
    runs.go({"cell": "torch 1"}, {"cell": True}, machine="m1")
    last = runs.go({"cell": "torch 2"}, {"cell": False}, machine="m1")
    assert [turn.cause for turn in turns(runs, "torch 2", last)] == [TurnCause.FLAKY, TurnCause.FLAKY]


def test_equal_inputs_that_fail_on_one_machine_only_are_no_flake(runs: Runs) -> None:
    runs.go({"cell": "torch 1"}, {"cell": True}, machine="m1")
    runs.go({"cell": "torch 1"}, {"cell": False}, machine="m2")
    last = runs.go({"cell": "torch 1"}, {"cell": True}, machine="m1")
    found = turns(runs, "torch 1", last)
    assert [turn.cause for turn in found] == [TurnCause.MACHINE, TurnCause.MACHINE]
    assert (found[0].before.machine, found[0].after.machine) == ("m1", "m2")


def test_runs_without_a_verdict_are_no_turns(runs: Runs) -> None:
    runs.go({"cell": "torch 1"}, {"cell": True})
    runs.go({"cell": "torch 1"}, finished=False)
    last = runs.go({"cell": "torch 1"}, {"cell": True})
    assert not turns(runs, "torch 1", last)


def test_runs_of_merged_ledgers_are_in_the_order_of_time(runs: Runs, tmp_path: Path) -> None:
    """A ledger that is merged later has runs of the days between the runs that were there before."""
    other = Runs(tmp_path / "other")
    runs.go({"cell": "torch 1"}, {"cell": True}, machine="m1")
    other.now = runs.now
    middle = other.go({"cell": "torch 2"}, {"cell": False}, machine="m2")
    other.ledger.close()
    runs.now += 2 * HOUR
    fixed = runs.go({"cell": "torch 3"}, {"cell": True}, machine="m1")
    runs.ledger.merge(other.ledger.path)
    last = runs.go({"cell": "torch 3"}, {"cell": True}, machine="m1")
    found = turns(runs, "torch 3", last)
    assert [(turn.after.run_id, turn.better) for turn in found] == [(middle, False), (fixed, True)]


def test_a_machine_with_a_future_date_does_not_hide_later_runs(runs: Runs, tmp_path: Path) -> None:
    other = Runs(tmp_path / "other")
    other.now = runs.now + 10_000 * HOUR
    other.go({"cell": "torch 1"}, {"cell": True}, machine="m2")
    other.ledger.close()
    runs.ledger.merge(other.ledger.path)
    broken = runs.go({"cell": "torch 2"}, {"cell": False}, machine="m1")
    last = runs.go({"cell": "torch 2"}, {"cell": False}, machine="m1")
    assert [turn.after.run_id for turn in turns(runs, "torch 2", last)] == [broken]


def test_weeks_of_small_runs_are_more_than_fifty(runs: Runs) -> None:
    both = {"cell": "torch 1", "other": "x"}
    first = runs.go(both, {"cell": True, "other": True})
    broken = runs.go({"cell": "torch 2"}, {"cell": False})
    for _ in range(80):
        runs.go({"other": "x"}, {"other": True})
    last = runs.go({"cell": "torch 2", "other": "x"}, {"cell": False, "other": True})
    results = runs.inputs({"cell": "torch 2", "other": "x"}, last).results
    (turn,) = next(one.turns for one in results if one.cell_id == "cell")
    assert (turn.before.run_id, turn.after.run_id) == (first, broken)


def test_since_a_day_compares_with_the_last_verdicts_of_all_runs_until_then(runs: Runs) -> None:
    both = {"cell": "torch 1", "other": "x"}
    runs.go({"cell": "torch 1"}, {"cell": True})
    runs.go({"other": "x"}, {"other": False})
    day = dt.datetime.fromtimestamp(runs.now, tz=dt.UTC).strftime("%Y-%m-%d")
    runs.now += 48 * HOUR
    runs.go({"cell": "torch 2"}, {"cell": False})
    now = {**both, "cell": "torch 2"}
    last = runs.go(now, {"cell": False, "other": False})
    model = build_model(runs.inputs(now, last, since=day))
    assert model.inputs.earlier
    assert model.inputs.earlier.run_id == f"all until {day}"
    assert [(change.cell, change.turn, change.causes) for change in model.changes] == [
        ("cell", RunChangeKind.BROKEN, ("pins: 'torch 1' -> 'torch 2'",)),
        ("other", RunChangeKind.STILL, ()),
    ]
