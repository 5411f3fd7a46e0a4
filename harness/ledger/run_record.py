"""Runs as the ledger stores them, and runs read from another ledger, whose content is checked first."""

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

#: The schema from which on plans are in a table of their own.
PLANS_SCHEMA_VERSION = 2
#: The columns that `read_run` expects.
RUN_COLUMNS = "run_id, started, finished, exit_code, argv, host"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One invocation; `finished` and `exit_code` are None while it goes on, or when it was killed.

    `plan` is empty when the stored one cannot be read.
    """

    run_id: str
    started: float
    finished: float | None
    exit_code: int | None
    argv: tuple[str, ...]
    host: Mapping[str, Any]
    plan: PlanRecord


@dataclass(frozen=True, kw_only=True)
class Disposition:
    """Why a planned check of a cell has no outcome in a run: skipped, blocked, or the run was stopped."""

    cell_id: str
    check: str
    key: str
    status: Status
    reason: str


def read_plan(body: str) -> PlanRecord | None:
    """A plan from its JSON text, or None when it is damaged or has another form."""
    try:
        return load(PlanRecord, body)
    except ValueError:
        return None


def read_run(row: Sequence[Any], plan: PlanRecord) -> RunRecord | None:
    """The run in a row of `RUN_COLUMNS`, or None when a column does not have its type."""
    run_id, started, finished, exit_code, argv, host = row
    times_fit = is_printable_time(started) and (finished is None or is_printable_time(finished))
    if not isinstance(run_id, str) or not times_fit or not isinstance(exit_code, int | None):
        return None
    try:
        return RunRecord(
            run_id=run_id,
            started=started,
            finished=finished,
            exit_code=exit_code,
            argv=load(tuple[str, ...], str(argv)),
            host=load(dict[str, Any], str(host)),
            plan=plan,
        )
    except ValueError:
        return None


def read_runs(file: Path) -> Iterator[tuple[tuple[object, ...], str, str]]:
    """The row of `RUN_COLUMNS`, plan's digest and plan's JSON of every run of another ledger.

    Runs whose plan is missing, does not fit its digest or cannot be read are left out, as are all runs of an
    older schema and whatever is damaged. The other ledger is not changed.
    """
    source = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    try:
        if schema_version(source) < PLANS_SCHEMA_VERSION:
            return
        rows = source.execute(f"SELECT {RUN_COLUMNS}, digest, body FROM runs JOIN plans ON plan = digest")  # noqa: S608
        for *run, digest, body in rows:
            # A migration of the schema named plans by their run.
            fits = digest in {digest_bytes(str(body).encode()), run[0]}
            plan = read_plan(str(body)) if fits else None
            if plan is not None and read_run(run, plan):
                yield tuple(run), str(digest), str(body)
    except sqlite3.DatabaseError:
        # The outcomes matter more, and as far as they can be read they have been taken already.
        return
    finally:
        source.close()
