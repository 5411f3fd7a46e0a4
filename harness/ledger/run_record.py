"""Runs as the ledger stores them, and the validated runs of another ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.digest import digest_bytes
from harness.ledger.ledger_schema import schema_version
from harness.ledger.outcome_record import is_printable_time
from harness.ledger.plan_record import PlanRecord
from harness.outcome import Status
from harness.serialisation import load

#: The first schema that has plans in a table of their own.
PLANS_SCHEMA_VERSION = 2
#: The columns that `read_run` expects.
RUN_COLUMNS = "run_id, started, finished, exit_code, argv, host"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. `finished` and `exit_code` are None while it is running, and if it was killed.

    `plan` is empty if the stored plan is in another format.
    """

    run_id: str
    started: float
    finished: float | None
    exit_code: int | None
    argv: tuple[str, ...]
    host: Mapping[str, object]
    plan: PlanRecord


@dataclass(frozen=True, kw_only=True)
class Disposition:
    """Why a planned check of a cell has no outcome: it was skipped or blocked, or the run was stopped."""

    cell_id: str
    check: str
    key: str
    status: Status
    reason: str


def read_plan(body: str) -> PlanRecord | None:
    """A plan from its JSON text, or None if the text is damaged or not in this format."""
    try:
        return load(PlanRecord, body)
    except ValueError:
        return None


def read_run(row: Sequence[Any], plan: PlanRecord) -> RunRecord | None:
    """The run in a row of `RUN_COLUMNS`, or None if a column does not have its type."""
    run_id, started, finished, exit_code, argv, host = row
    valid_times = is_printable_time(started) and (finished is None or is_printable_time(finished))
    if not isinstance(run_id, str) or not valid_times or not isinstance(exit_code, int | None):
        return None
    try:
        return RunRecord(
            run_id=run_id,
            started=started,
            finished=finished,
            exit_code=exit_code,
            argv=load(tuple[str, ...], str(argv)),
            host=load(dict[str, object], str(host)),
            plan=plan,
        )
    except ValueError:
        return None


def read_runs(file: Path) -> Iterator[tuple[tuple[object, ...], str, str]]:
    """For each run of another ledger: its row of `RUN_COLUMNS`, the digest of its plan, and the plan's JSON.

    Damaged runs are left out, as are runs whose plan is missing, unreadable or does not match its digest, and
    all runs of a ledger with an older schema. The other ledger is not changed.
    """
    source = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    try:
        if schema_version(source) < PLANS_SCHEMA_VERSION:
            return
        rows = source.execute(
            f"SELECT {RUN_COLUMNS}, digest, body FROM runs "  # noqa: S608
            "JOIN plans ON plan = digest ORDER BY runs.rowid"
        )
        for *run, digest, body in rows:
            # Plans of ledgers that were migrated from schema 1 are identified by their run.
            intact = digest in {digest_bytes(str(body).encode()), run[0]}
            plan = read_plan(str(body)) if intact else None
            if plan is not None and read_run(run, plan):
                yield tuple(run), str(digest), str(body)
    except sqlite3.DatabaseError:
        # The readable outcomes have been merged before, and they matter more than the runs.
        return
    finally:
        source.close()
