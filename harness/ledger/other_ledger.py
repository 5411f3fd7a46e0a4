"""Reads another ledger, which is not changed, to merge it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from harness.ledger.attestation.statement import Attestation
from harness.ledger.database import open_database
from harness.ledger.outcome_row import OUTCOME_COLUMNS, OutcomeRow, read_attestations
from harness.ledger.plan_record import PlanRecord
from harness.ledger.run_record import RUN_COLUMNS, read_plan, read_run
from harness.ledger.run_rows import intact_plan
from harness.outcome import Outcome


class OtherLedger:
    """A repaired copy of another ledger's file, with its journal, as a context manager.

    `damaged` names the rows that were lost. InputError if nothing in the file can be believed.
    """

    def __init__(self, path: Path) -> None:
        opened = open_database(path, read_only=True)
        self._copy = opened.copy
        self._database: sqlite3.Connection = opened.connection
        self.damaged = [str(row) for row in opened.lost]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close and remove the copy."""
        self._database.close()
        if self._copy is not None:
            shutil.rmtree(self._copy, ignore_errors=True)

    def outcomes(self) -> Iterator[tuple[OutcomeRow, Outcome]]:
        """Every intact outcome with its row, in the order of that ledger."""
        for columns in self._database.execute(
            f"SELECT {OUTCOME_COLUMNS} FROM outcomes ORDER BY id"  # noqa: S608
        ):
            row = OutcomeRow(*columns)
            outcome = row.outcome()
            if outcome is None:
                self.damaged.append(f"the outcome {str(row.uid)[:12]} of {row.check_name!s:.40}")
            else:
                yield row, outcome

    def attestations(self, uid: str) -> tuple[Attestation, ...]:
        """The signed statements about one outcome."""
        return read_attestations(self._database, uid)

    def runs(self) -> Iterator[tuple[tuple[object, ...], str, PlanRecord]]:
        """For each run: its row of `RUN_COLUMNS`, its plan's JSON, and the plan.

        Runs whose plan is lost, or in another format, are left out.
        """
        rows = self._database.execute(
            f"SELECT {RUN_COLUMNS}, digest, body FROM runs "  # noqa: S608
            "JOIN plans ON plan = digest ORDER BY runs.rowid"
        )
        for *run, digest, body in rows:
            text = intact_plan(digest, body)
            plan = read_plan(text) if text is not None else None
            if text is not None and plan is not None and read_run(run, plan):
                yield tuple(run), text, plan
