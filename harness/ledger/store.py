"""The ledger: every outcome ever recorded, the runs that recorded them, and what runs left undone and why."""

from __future__ import annotations

import json
import sqlite3
import statistics
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.digest import canonical_json, digest_bytes
from harness.errors import InputError, Location
from harness.ledger.artifacts import ArtifactStore
from harness.ledger.database import DatabaseDamage, database_errors, open_database
from harness.ledger.outcome_record import outcome_body, outcome_uid, read_outcome, readable
from harness.ledger.plan_record import PlanRecord
from harness.ledger.run_record import RUN_COLUMNS, Disposition, RunRecord, read_plan, read_run, read_runs
from harness.outcome import ArtifactRef, Outcome, State, Status

FILE_NAME = "ledger.sqlite3"
MAX_TIMING_SAMPLES = 20
# Leaves out the runs that a command made as part of something else (bisect, ablate, reruns).
REQUESTED_RUNS = """(argv = '[]' OR argv LIKE '%"run"%')"""
RUN_ORDER = "started DESC, rowid"
# An outcome recorded here outranks a merged one: its files, for example an environment, are on this machine.
LATEST_REUSABLE = (
    f"state = '{State.COMPLETED.value}' ORDER BY merged, CASE merged WHEN 0 THEN id ELSE finished END DESC"
)
# Merged outcomes are ordered by their times. The order of those recorded here is known even when the clock
# was set back meanwhile: no outcome ended before those with a smaller id.
OUTCOME_TIME = (
    "CASE merged WHEN 0 THEN max(finished) OVER (PARTITION BY merged ORDER BY id) ELSE finished END"
)
PUT_PLAN = (
    "INSERT INTO plans (digest, body) VALUES (?, ?) "
    "ON CONFLICT (digest) DO UPDATE SET body = excluded.body WHERE body != excluded.body"
)


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something the user must be told although the program goes on."""

    what: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  do:  {self.fix}"


class Ledger:
    """An append-only store of outcomes in SQLite. One instance per thread; processes may share the file.

    Every method raises InfrastructureError when the disk or another process prevents it. Rows whose content
    does not fit their digest are not believed: they are left out, and counted in `damaged_rows`.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.notices: tuple[Notice, ...] = ()
        self.damaged_rows = 0
        self._db = connection
        self.artifacts = ArtifactStore(path.parent / "artifacts")

    @classmethod
    def open(cls, folder: Path) -> Ledger:
        """Open or create the ledger in the state folder; read `notices` afterwards.

        A damaged one is kept aside, and what can still be read of it is taken over into a new one.
        InputError when a newer program wrote it, InfrastructureError when it can neither be read nor made.
        """
        path = folder / FILE_NAME
        had_content = (folder / "artifacts" / "sha256").is_dir()
        connection, damage = open_database(path, emptied=had_content)
        ledger = cls(path, connection)
        if damage:
            ledger.notices = (ledger._recover_outcomes(damage),)
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the file; nothing is lost without it."""
        self._db.close()

    def record(self, outcome: Outcome) -> Outcome:
        """Append durably, and return the outcome with the attempt number it has here.

        ValueError or TypeError when its measurements are no JSON.
        """
        with self._transaction("write to"):
            return self._append(outcome, merged=False) or outcome

    def get(self, key: str) -> Outcome | None:
        """The outcome a later run may take instead of running `key` again, or None."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """Key -> reusable outcome, for the keys that have one."""
        found: dict[str, Outcome] = {}
        with database_errors(self.path, "read"):
            for key in dict.fromkeys(keys):
                rows = self._db.execute(
                    f"SELECT uid, attempt, body FROM outcomes WHERE key = ? AND {LATEST_REUSABLE}",  # noqa: S608
                    (key,),
                )
                outcome = next(self._intact_outcomes(rows), None)
                if outcome:
                    found[key] = outcome
        return found

    def latest(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """Key -> the last recorded outcome in any state, for the keys that have one."""
        found: dict[str, Outcome] = {}
        with database_errors(self.path, "read"):
            for key in dict.fromkeys(keys):
                rows = self._db.execute(
                    "SELECT uid, attempt, body FROM outcomes WHERE key = ? ORDER BY id DESC", (key,)
                )
                outcome = next(self._intact_outcomes(rows), None)
                if outcome:
                    found[key] = outcome
        return found

    def history(
        self, *, key: str | None = None, check: str | None = None, run_id: str | None = None, limit: int = 100
    ) -> tuple[Outcome, ...]:
        """Outcomes in any state, newest first, of one key, check or run (all that are given must fit).

        Of a key, the one that ended last comes first, whenever it was merged; else what was recorded last.
        """
        wanted = {"key": key, "check_name": check, "run_id": run_id}
        given = {column: value for column, value in wanted.items() if value is not None}
        where = " AND ".join(f"{column} = ?" for column in given) or "1"
        order = f"{OUTCOME_TIME} DESC, id DESC" if key is not None else "id DESC"
        with database_errors(self.path, "read"):
            rows = self._db.execute(
                f"SELECT uid, attempt, body FROM outcomes WHERE {where} ORDER BY {order} LIMIT ?",  # noqa: S608
                (*given.values(), limit),
            )
            return tuple(self._intact_outcomes(rows))

    def next_attempt(self, key: str) -> int:
        """The number the next outcome of `key` gets; counts from 1."""
        with database_errors(self.path, "read"):
            return self._next_attempt(key)

    def typical_seconds(self) -> dict[str, float]:
        """Check name -> median wall time of its last completed executions."""
        with database_errors(self.path, "read"):
            names = [row[0] for row in self._db.execute("SELECT DISTINCT check_name FROM outcomes")]
            typical = {}
            for name in names:
                rows = self._db.execute(
                    "SELECT max(0.0, finished - started) FROM outcomes WHERE check_name = ? AND state = ? "
                    "ORDER BY id DESC LIMIT ?",
                    (name, State.COMPLETED.value, MAX_TIMING_SAMPLES),
                ).fetchall()
                if rows:
                    typical[name] = statistics.median(row[0] for row in rows)
        return typical

    def begin_run(
        self,
        plan: PlanRecord,
        argv: Sequence[str],
        host: Mapping[str, Any],
        *,
        now: float | None = None,
    ) -> str:
        """Record that a run starts, with its plan; returns its id, which sorts by start time."""
        started = time.time() if now is None else now
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(started))
        run_id = f"{stamp}-{uuid.uuid4().hex[:8]}"
        body = canonical_json(plan)
        digest = digest_bytes(body.encode())
        with self._transaction("write to"):
            # Also where it is known: that heals a plan whose text has changed.
            self._db.execute(PUT_PLAN, (digest, body))
            self._db.execute(
                "INSERT INTO runs (run_id, started, argv, host, plan) VALUES (?, ?, ?, ?, ?)",
                (run_id, started, canonical_json(readable(argv)), canonical_json(readable(host)), digest),
            )
        return run_id

    def finish_run(self, run_id: str, exit_code: int, *, now: float | None = None) -> None:
        """Record how a run ended; KeyError when there is no such run."""
        with self._transaction("write to"):
            changed = self._db.execute(
                "UPDATE runs SET finished = ?, exit_code = ? WHERE run_id = ?",
                (time.time() if now is None else now, exit_code, run_id),
            ).rowcount
            if not changed:
                raise KeyError(run_id)

    def record_dispositions(
        self, run_id: str, dispositions: Iterable[Disposition], *, now: float | None = None
    ) -> None:
        """Record why entries have no outcome, all of them or none; a later record replaces an earlier one."""
        at = time.time() if now is None else now
        with self._transaction("write to"):
            self._db.executemany(
                "INSERT OR REPLACE INTO dispositions (run_id, cell_id, check_name, key, status, reason, at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(run_id, d.cell_id, d.check, d.key, d.status.value, d.reason, at) for d in dispositions],
            )

    def dispositions(self, run_id: str) -> tuple[Disposition, ...]:
        """What a run left without an outcome, in the order of cells and checks."""
        with database_errors(self.path, "read"):
            rows = self._db.execute(
                "SELECT cell_id, check_name, key, status, reason FROM dispositions "
                "WHERE run_id = ? ORDER BY cell_id, check_name",
                (run_id,),
            ).fetchall()
        return tuple(
            Disposition(cell_id=cell_id, check=check, key=key, status=Status(status), reason=reason)
            for cell_id, check, key, status, reason in rows
        )

    def runs(self, limit: int = 100) -> tuple[RunRecord, ...]:
        """The last runs, newest first."""
        return self._runs("1", (), limit)

    def run(self, run_id: str) -> RunRecord | None:
        """The run with this id, or None."""
        return next(iter(self._runs("run_id = ?", (readable(run_id),), 1)), None)

    def latest_run(self) -> RunRecord | None:
        """The run that started last here, if it can be no probe; else the last that was merged.

        Last here is last in the ledger: a clock that was set back does not bring an older run to the front.
        """
        tried = ((f"merged = 0 AND {REQUESTED_RUNS}", "rowid"), ("merged = 0", "rowid"), ("1", RUN_ORDER))
        return next((run for where, order in tried for run in self._runs(where, (), 1, order)), None)

    def merge(self, other: Path) -> int:
        """Append the outcomes of another ledger that are not here yet, and count them; its runs come along.

        Logs and artifacts that stand beside it come along, if they still are what their digests say. Of a
        damaged file, what can be read and fits its digest is taken. InputError when it is no ledger.
        """
        if not other.is_file():
            raise InputError("there is no ledger to merge", where=Location(other), fix=f"name a {FILE_NAME}")
        added = 0
        refs: dict[str, ArtifactRef] = {}
        with self._transaction("merge into"):
            for outcome in self._outcomes_of(other):
                if self._append(outcome, merged=True):
                    added += 1
                found = (*outcome.artifacts, *((outcome.log,) if outcome.log else ()))
                refs.update((ref.digest, ref) for ref in found)
            self._merge_runs(other)
        self.artifacts.copy_from(ArtifactStore(other.parent / "artifacts"), refs.values())
        return added

    def _recover_outcomes(self, damage: DatabaseDamage) -> Notice:
        try:
            saved = self.merge(damage.aside)
        except InputError:
            saved = 0
        return Notice(
            what=f"the ledger was damaged; it is kept as {damage.aside.name}, and a new one was started",
            why=f"{self.path}: {damage.why}",
            fix=f"nothing: {saved} outcomes could still be read and were taken over, the artifacts are still "
            "there, and what is missing is measured again by the next run",
        )

    def _outcomes_of(self, other: Path) -> Iterator[Outcome]:
        source = sqlite3.connect(f"{other.absolute().as_uri()}?mode=ro", uri=True)
        read = 0
        try:
            for row in source.execute("SELECT uid, attempt, body FROM outcomes ORDER BY finished, id"):
                yield from self._intact_outcomes([row])
                read += 1
        except sqlite3.DatabaseError as error:
            if not read:
                raise InputError(
                    "nothing can be read from this file as a ledger", where=Location(other), why=str(error)
                ) from error
        finally:
            source.close()

    def _merge_runs(self, other: Path) -> None:
        for run, digest, body in read_runs(other):
            self._db.execute("INSERT OR IGNORE INTO plans (digest, body) VALUES (?, ?)", (digest, body))
            self._db.execute(
                f"INSERT OR IGNORE INTO runs ({RUN_COLUMNS}, plan, merged) "  # noqa: S608
                "VALUES (?, ?, ?, ?, ?, ?, ?, 1)",
                (*run, digest),
            )

    def _append(self, outcome: Outcome, *, merged: bool) -> Outcome | None:
        numbered = replace(outcome, attempt=self._next_attempt(outcome.key))
        # Digested as it will be read again: JSON turns tuples into lists and number keys into text.
        body = outcome_body(numbered)
        inserted = self._db.execute(
            "INSERT OR IGNORE INTO outcomes "
            "(uid, key, check_name, state, attempt, run_id, merged, started, finished, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                outcome_uid(json.loads(body)),
                numbered.key,
                numbered.check,
                numbered.state.value,
                numbered.attempt,
                numbered.run_id,
                int(merged),
                numbered.started,
                numbered.finished,
                body,
            ),
        ).rowcount
        return numbered if inserted else None

    def _next_attempt(self, key: str) -> int:
        row = self._db.execute("SELECT coalesce(max(attempt), 0) + 1 FROM outcomes WHERE key = ?", (key,))
        return int(row.fetchone()[0])

    def _intact_outcomes(self, rows: Iterable[tuple[str, int, str]]) -> Iterator[Outcome]:
        for uid, attempt, body in rows:
            outcome = read_outcome(uid, attempt, body)
            if outcome is None:
                self.damaged_rows += 1
            else:
                yield outcome

    def _runs(
        self, where: str, values: tuple[str, ...], limit: int, order: str = RUN_ORDER
    ) -> tuple[RunRecord, ...]:
        with database_errors(self.path, "read"):
            rows = self._db.execute(
                f"SELECT {RUN_COLUMNS}, plan FROM runs WHERE {where} ORDER BY {order} DESC LIMIT ?",  # noqa: S608
                (*values, limit),
            ).fetchall()
            plans = {digest: self._plan(digest) for digest in {row[-1] for row in rows}}
        read = (read_run(row, plans[digest]) for *row, digest in rows)
        return tuple(run for run in read if run is not None)

    def _plan(self, digest: str) -> PlanRecord:
        """The plan, or an empty one where none is stored or it has another form."""
        row = self._db.execute("SELECT body FROM plans WHERE digest = ?", (digest,)).fetchone()
        return (read_plan(str(row[0])) if row else None) or PlanRecord()

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[None]:
        with database_errors(self.path, doing):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
