"""Reads rows of the ledger's tables `outcomes` and `attestations`."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from harness.ledger.attestation.statement import Attestation
from harness.ledger.outcome_record import read_outcome
from harness.outcome import Outcome

#: The columns of `OutcomeRow`, in its order.
OUTCOME_COLUMNS = "uid, attempt, key, check_name, state, run_id, merged, body"
#: How many signed statements of one outcome are read, and how long each part of one may be.
MOST_ATTESTATIONS = 16
LONGEST = 1 << 18


class OutcomeRow(NamedTuple):
    """A row of `OUTCOME_COLUMNS`. In a damaged file, a column may have any type."""

    uid: str
    attempt: int
    key: str
    check_name: str
    state: str
    run_id: str
    merged: int
    body: str

    def outcome(self) -> Outcome | None:
        """The outcome; None if its text does not match its digest or one of the columns."""
        if not isinstance(self.body, str):
            return None
        found = read_outcome(self.uid, self.attempt, self.body)
        if found is None:
            return None
        columns = (self.key, self.check_name, self.state, self.run_id)
        return found if columns == (found.key, found.check, found.state.value, found.run_id) else None


def read_attestations(database: sqlite3.Connection, uid: str) -> tuple[Attestation, ...]:
    """The signed statements about an outcome."""
    rows = database.execute(
        "SELECT statement, signature FROM attestations WHERE uid = ? LIMIT ?", (uid, MOST_ATTESTATIONS)
    ).fetchall()
    return tuple(
        Attestation(statement=statement, signature=signature)
        for statement, signature in rows
        if _is_short_text(statement) and _is_short_text(signature)
    )


def _is_short_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST
