"""The functions that statements of the ledger call, and what makes a row of an unsealed ledger believable."""

from __future__ import annotations

import sqlite3

from harness.digest import digest_bytes
from harness.ledger.ledger_schema import DIGEST_LENGTH
from harness.ledger.outcome_row import OutcomeRow
from harness.ledger.plan_record import PlanRecord
from harness.ledger.run_record import read_plan, read_run
from harness.ledger.sealed_rows import row_seal
from harness.outcome import Status


def register_functions(connection: sqlite3.Connection) -> None:
    """Make the functions known to this connection; migrations and the triggers of seals need them."""
    connection.create_function(
        "text_digest", 1, lambda text: digest_bytes(str(text).encode()), deterministic=True
    )
    connection.create_function("is_outcome_row", -1, is_outcome_row, deterministic=True)
    connection.create_function(
        "row_seal", -1, lambda table, row_id, *values: row_seal(table, row_id, values), deterministic=True
    )


def is_outcome_row(*values: object) -> bool:
    """Whether the columns of an outcome say the same as its text, and the text has its digest."""
    _row_id, *columns = values[: len(OutcomeRow._fields) + 1]
    return OutcomeRow._make(columns).outcome() is not None


def is_plan_row(digest: object, body: object, *_more: object) -> bool:
    """Whether the text of a plan has its digest; plans of schema 1 are named after their run instead."""
    named = str(digest)
    return digest_bytes(str(body).encode()) == named or (
        len(named) != DIGEST_LENGTH and read_plan(str(body)) is not None
    )


def is_run_row(*values: object) -> bool:
    """Whether every column of a run has its form; without a seal nothing else can be checked."""
    return read_run(values[:6], PlanRecord()) is not None and isinstance(values[6], str)


def is_disposition_row(*values: object) -> bool:
    """Whether every column of a disposition has its form; without a seal nothing else can be checked."""
    return all(isinstance(value, str) for value in values[:6]) and values[4] in set(Status)


def is_attestation_row(*values: object) -> bool:
    """Whether every column of a signed statement has its form; its signature decides whether it counts."""
    return all(isinstance(value, str) for value in values) and len(str(values[0])) == DIGEST_LENGTH
