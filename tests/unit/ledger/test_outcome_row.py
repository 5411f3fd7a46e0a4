"""A row of the ledger is an outcome only if every column says the same as its text."""

from __future__ import annotations

import pytest
from make_outcome import make_outcome

from harness.ledger.outcome_row import Merged, OutcomeRow
from harness.ledger.sql_functions import is_outcome_row

OUTCOME = make_outcome("a" * 64, "resolve", run_id="run", started=1.0, finished=2.0, attempt=3)
ROW = OutcomeRow.of(OUTCOME, Merged.YES)
OTHERS = {
    "uid": "b" * 64,
    "key": "b" * 64,
    "check_name": "loss",
    "state": "timeout",
    "attempt": "3",
    "run_id": "another",
    "merged": 3,
    "started": 1.5,
    "finished": 9.0,
    "body": ROW.body.replace("resolve", "rebuild"),
}


def test_a_row_is_the_outcome_it_was_made_of() -> None:
    assert ROW.outcome() == OUTCOME
    assert is_outcome_row(1, *ROW, "the seal")


@pytest.mark.parametrize("column", OutcomeRow._fields)
def test_a_row_with_another_value_in_any_column_is_no_outcome(column: str) -> None:
    for value in (OTHERS[column], None, b"\x00"):
        row = ROW._replace(**{column: value})
        assert row.outcome() is None
        assert not is_outcome_row(1, *row)
