"""Reads rows of the ledger's tables `outcomes` and `attestations`."""

from __future__ import annotations

import enum
import sqlite3
from typing import NamedTuple

from harness.ledger.attestation.statement import Attestation
from harness.ledger.outcome_record import outcome_body, outcome_uid, read_outcome
from harness.outcome import Outcome

#: The columns of `OutcomeRow`, in its order, which is that of the table after the row id.
OUTCOME_COLUMNS = "uid, key, check_name, state, attempt, run_id, merged, started, finished, body"
#: How many signed statements of one outcome are read, and how long each part of one may be.
MOST_ATTESTATIONS = 16
LONGEST = 1 << 18


class Merged(enum.IntEnum):
    """How an outcome came into a ledger, as its column `merged`.

    `FROM_HERE`: merged from a ledger that only programs of this machine wrote.
    """

    NO = 0
    YES = 1
    FROM_HERE = 2


class OutcomeRow(NamedTuple):
    """A row of `OUTCOME_COLUMNS`. In a damaged file, a column may have any type."""

    uid: str
    key: str
    check_name: str
    state: str
    attempt: int
    run_id: str
    merged: int
    started: float
    finished: float
    body: str

    @classmethod
    def of(cls, outcome: Outcome, merged: Merged) -> OutcomeRow:
        """The row of an outcome; ValueError or TypeError if its measurements are not JSON."""
        body = outcome_body(outcome)
        return cls(
            uid=outcome_uid(body),
            key=outcome.key,
            check_name=outcome.check,
            state=outcome.state.value,
            attempt=outcome.attempt,
            run_id=outcome.run_id,
            merged=merged.value,
            started=outcome.started,
            finished=outcome.finished,
            body=body,
        )

    def outcome(self) -> Outcome | None:
        """The outcome; None if its text does not match its digest or one of the columns."""
        if not all(isinstance(one, kind) for one, kind in ((self.body, str), (self.attempt, int))):
            return None
        if self.merged not in set(Merged):
            return None
        found = read_outcome(self.uid, self.attempt, self.body)
        if found is None:
            return None
        stated = (found.key, found.check, found.state.value, found.run_id, found.started, found.finished)
        columns = (self.key, self.check_name, self.state, self.run_id, self.started, self.finished)
        return found if columns == stated else None


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
