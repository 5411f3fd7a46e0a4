"""The SQL statements about runs, their plans and their dispositions. All take an open ledger's connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from harness.digest import digest_bytes
from harness.ledger.plan_record import PlanRecord
from harness.ledger.run_record import RUN_COLUMNS, Disposition, RunRecord, read_plan, read_run
from harness.ledger.sealed_rows import next_row_id
from harness.outcome import Status


def insert_plan(database: sqlite3.Connection, body: str) -> str:
    """Store a plan and return its digest. Storing a known plan again repairs it, if its text was changed."""
    digest = digest_bytes(body.encode())
    database.execute(
        "INSERT INTO plans (digest, body) VALUES (?, ?) "
        "ON CONFLICT (digest) DO UPDATE SET body = excluded.body WHERE body != excluded.body",
        (digest, body),
    )
    return digest


def insert_run(database: sqlite3.Connection, row: Sequence[object], plan: str, *, merged: bool) -> None:
    """Add a run; a merged one only if it is new. row: the values of `RUN_COLUMNS`. plan: its digest."""
    database.execute(
        f"INSERT {'OR IGNORE ' if merged else ''}INTO runs (rowid, {RUN_COLUMNS}, plan, merged) "  # noqa: S608
        f"VALUES ({next_row_id('runs')}, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*row, plan, int(merged)),
    )


def intact_plan(digest: str, body: object) -> str | None:
    """The text of a stored plan, None if it does not match its digest."""
    return body if isinstance(body, str) and digest_bytes(body.encode()) == digest else None


def select_runs(
    database: sqlite3.Connection, where: str, values: Sequence[str], limit: int
) -> tuple[RunRecord, ...]:
    """The runs under the SQL condition `where`, newest first, as far as they and their plans are intact."""
    rows = database.execute(
        f"SELECT {RUN_COLUMNS}, plan FROM runs WHERE {where} ORDER BY rowid DESC LIMIT ?",  # noqa: S608
        (*values, limit),
    ).fetchall()
    plans = {digest: _plan(database, digest) for digest in {row[-1] for row in rows}}
    planned = ((row, plans[digest]) for *row, digest in rows)
    read = (read_run(row, plan) for row, plan in planned if plan is not None)
    return tuple(run for run in read if run is not None)


def _plan(database: sqlite3.Connection, digest: str) -> PlanRecord | None:
    """The stored plan; empty if its text is not in this format.

    None if it is lost: the run would seem to have nothing to do.
    """
    row = database.execute("SELECT body FROM plans WHERE digest = ?", (digest,)).fetchone()
    body = intact_plan(digest, row[0]) if row else None
    return None if body is None else read_plan(body) or PlanRecord()


def run_position(database: sqlite3.Connection, run_id: str) -> int:
    """The position of a run in the order of the ledger."""
    return int(database.execute("SELECT rowid FROM runs WHERE run_id = ?", (run_id,)).fetchone()[0])


def run_ends(database: sqlite3.Connection) -> dict[str, int]:
    """Run -> the position after which outcomes are later than the run; oldest run first."""
    rows = database.execute(
        "SELECT runs.run_id, coalesce(max(outcomes.id), 0) FROM runs "
        "LEFT JOIN outcomes ON outcomes.run_id = runs.run_id GROUP BY runs.rowid ORDER BY runs.rowid"
    )
    ends, end = {}, 0
    for run_id, last in rows:
        ends[run_id] = end = max(end, last)
    return ends


def seconds_before_previous_end(database: sqlite3.Connection, run_id: str) -> tuple[str, float] | None:
    """The previous run of this machine, and how many seconds before its end this run started by the clock.

    The seconds are negative if it started later. None for merged runs, and if there is no previous run.
    """
    row = database.execute(
        "SELECT earlier.run_id, coalesce(earlier.finished, earlier.started) - this.started "
        "FROM runs AS this JOIN runs AS earlier ON earlier.rowid < this.rowid "
        "WHERE this.run_id = ? AND this.merged = 0 AND earlier.merged = 0 "
        "ORDER BY earlier.rowid DESC LIMIT 1",
        (run_id,),
    ).fetchone()
    return (str(row[0]), float(row[1])) if row else None


def put_dispositions(
    database: sqlite3.Connection, run_id: str, dispositions: Iterable[Disposition], at: float
) -> None:
    """Store why entries of a run have no outcome; replaces earlier reasons. at: Unix seconds."""
    database.executemany(
        "INSERT OR REPLACE INTO dispositions (run_id, cell_id, check_name, key, status, reason, at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(run_id, d.cell_id, d.check, d.key, d.status.value, d.reason, at) for d in dispositions],
    )


def select_dispositions(database: sqlite3.Connection, run_id: str) -> tuple[Disposition, ...]:
    """The entries that a run left without an outcome, ordered by cell and check."""
    rows = database.execute(
        "SELECT cell_id, check_name, key, status, reason FROM dispositions "
        "WHERE run_id = ? ORDER BY cell_id, check_name",
        (run_id,),
    )
    return tuple(
        Disposition(cell_id=cell_id, check=check, key=key, status=Status(status), reason=reason)
        for cell_id, check, key, status, reason in rows
    )
