"""Reads the outcomes of another ledger, which is not changed, to merge them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from harness.errors import InputError, Location
from harness.ledger.attestation.statement import Attestation
from harness.ledger.outcome_row import OUTCOME_COLUMNS, OutcomeRow, read_attestations
from harness.outcome import Outcome


class OtherLedger:
    """Another ledger's file. `damaged` names the rows that could not be read, after `outcomes` was used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damaged: list[str] = []

    def outcomes(self) -> Iterator[tuple[OutcomeRow, Outcome]]:
        """Every intact outcome with its row, in the order of that ledger.

        InputError if nothing can be read.
        """
        read = 0
        with closing(self._connect()) as source:
            try:
                for columns in source.execute(
                    f"SELECT {OUTCOME_COLUMNS} FROM outcomes ORDER BY id"  # noqa: S608
                ):
                    read += 1
                    row = OutcomeRow(*columns)
                    outcome = row.outcome()
                    if outcome is None:
                        self.damaged.append(f"the outcome {str(row.uid)[:12]} of {row.check_name!s:.40}")
                    else:
                        yield row, outcome
            except sqlite3.DatabaseError as error:
                if not read:
                    raise InputError(
                        "this file cannot be read as a ledger", where=Location(self._path), why=str(error)
                    ) from error
                self.damaged.append(f"the rest of the file: {error}")

    def attestations(self, uid: str) -> tuple[Attestation, ...]:
        """The signed statements about one outcome."""
        with closing(self._connect()) as source:
            return read_attestations(source, uid)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
