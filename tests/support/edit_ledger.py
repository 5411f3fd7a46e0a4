"""Edits a ledger as the program would write it: with seals, and with plans under their digests."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from harness.ledger.sealed_rows import install_seals
from harness.ledger.sql_functions import register_functions

NEW_PLAN_DIGESTS = (
    "UPDATE plans SET digest = text_digest(body)",
    "UPDATE runs SET plan = (SELECT digest FROM plans)",
)


def edit_ledger(file: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    """Execute statements; `values` are those of the first one."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        register_functions(database)
        install_seals(database)
        for number, statement in enumerate(statements):
            database.execute(statement, () if number else values)
