"""A migration is done only if the checks of the new row pass; checks that were not run do not count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.outcome import Evidence, Status
from harness.verdict.gate.migration_progress import migration_progress
from harness.verdict.verdict import Standing, Verdict


def row(**statuses: Status) -> list[Verdict]:
    return [
        Verdict(cell_id="c", check=check, status=status, standing=Standing.AS_EXPECTED, reasons=("said so",))
        for check, status in statuses.items()
    ]


def test_a_green_row_is_done_and_what_cannot_be_asked_here_holds_nobody_up():
    found = migration_progress(
        row(resolve=Status.FAIL, loss=Status.NOT_RUN), row(resolve=Status.PASS, loss=Status.NOT_RUN)
    )
    assert found.done
    assert found.waits_for == ()


@pytest.mark.parametrize(
    "status", [Status.FAIL, Status.ERROR, Status.BLOCKED, Status.STALE, Status.INCONCLUSIVE]
)
def test_anything_else_holds_it_up_even_where_the_old_row_is_no_better(status: Status):
    found = migration_progress(row(resolve=status, lint=Status.PASS), row(resolve=status, lint=Status.PASS))
    assert not found.done
    assert found.waits_for == (f"resolve: {status.value}: said so",)


@pytest.mark.parametrize("old", Evidence)
@pytest.mark.parametrize("new", Evidence)
def test_a_pass_on_weaker_evidence_than_that_of_the_old_row_holds_it_up(old: Evidence, new: Evidence):
    before, after = (replace(row(loss=Status.PASS)[0], evidence=one) for one in (old, new))
    found = migration_progress([before], [after])
    assert found.done is (new.rank >= old.rank)
    if not found.done:
        words = f"passes on {old.value} evidence on the old row, on {new.value} evidence on the new one"
        assert found.waits_for == (f"loss: {words}",)


def test_not_run_is_no_answer_where_the_old_row_passes():
    found = migration_progress(
        row(loss=Status.PASS, lint=Status.PASS), row(loss=Status.NOT_RUN, lint=Status.PASS)
    )
    assert found.waits_for == ("loss: passes on the old row, not-run on the new one",)


def test_not_run_is_no_answer_where_the_old_row_fails_for_that_may_be_why_it_moves():
    found = migration_progress(
        row(resolve=Status.FAIL, lint=Status.PASS), row(resolve=Status.NOT_RUN, lint=Status.PASS)
    )
    assert not found.done
    assert found.waits_for == ("resolve: fail on the old row, not-run on the new one",)


def test_a_failing_check_that_has_nothing_to_ask_of_the_new_row_holds_nobody_up():
    assert migration_progress(
        row(api=Status.FAIL, lint=Status.PASS), row(api=Status.UNSUPPORTED, lint=Status.PASS)
    ).done


def test_a_check_the_new_row_was_never_asked():
    assert migration_progress(row(lint=Status.PASS, loss=Status.FAIL), row(lint=Status.PASS)).waits_for == (
        "loss: the new row has no outcome yet",
    )


def test_a_row_that_proved_nothing_is_not_done():
    assert not migration_progress([], []).done
    assert not migration_progress(row(loss=Status.NOT_RUN), row(loss=Status.NOT_RUN)).done


@given(
    old=st.dictionaries(st.sampled_from("abc"), st.sampled_from(Status)),
    new=st.dictionaries(st.sampled_from("abc"), st.sampled_from(Status)),
)
def test_done_means_a_pass_and_no_failure(old: dict[str, Status], new: dict[str, Status]):
    if migration_progress(row(**old), row(**new)).done:
        assert Status.PASS in new.values()
        assert set(new.values()) <= {Status.PASS, Status.NOT_RUN, Status.UNSUPPORTED}
        assert {check for check, status in old.items() if status is Status.PASS} <= {
            check for check, status in new.items() if status is Status.PASS
        }
