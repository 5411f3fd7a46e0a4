"""The ledger: all recorded outcomes, the runs that recorded them, and why entries of runs have no outcome."""

from __future__ import annotations

import sqlite3
import statistics
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

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
# Leaves out runs that other commands started (bisect, ablate, reruns).
REQUESTED_RUNS = """(argv = '[]' OR argv LIKE '%"run"%')"""
RUN_ORDER = "started DESC, rowid"
# Outcomes recorded here come before merged ones: their files, for example environments, are on this machine.
LATEST_REUSABLE = (
    f"AND state = '{State.COMPLETED.value}' "
    "ORDER BY merged, CASE merged WHEN 0 THEN id ELSE finished END DESC"
)
# Merged outcomes are ordered by their times. The ids of outcomes that were recorded here increase with time,
# so their order is known even if the clock was set back.
OUTCOME_TIME = (
    "CASE merged WHEN 0 THEN max(finished) OVER (PARTITION BY merged ORDER BY id) ELSE finished END"
)
PUT_PLAN = (
    "INSERT INTO plans (digest, body) VALUES (?, ?) "
    "ON CONFLICT (digest) DO UPDATE SET body = excluded.body WHERE body != excluded.body"
)


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A problem that the user must know about, although the program continues."""

    what: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}\n  why: {self.why}\n  do:  {self.fix}"


class Ledger:
    """An append-only store of outcomes in SQLite. One instance per thread; processes may share the file.

    Every method raises InfrastructureError if the disk fails or another process holds the lock for too long.
    Rows whose content does not match their digest are ignored, and counted in `damaged_rows`.
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

        A damaged file is renamed, and its readable outcomes are copied to a new ledger. InputError if a newer
        program wrote it, InfrastructureError if it can be neither read nor created.
        """
        path = folder / FILE_NAME
        had_content = (folder / "artifacts" / "sha256").is_dir()
        connection, damage = open_database(path, had_content=had_content)
        ledger = cls(path, connection)
        if damage:
            ledger.notices = (ledger._recover_outcomes(damage),)
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. No outcome is lost if this is not called."""
        self._db.close()

    def record(self, outcome: Outcome) -> Outcome:
        """Append durably; returns the outcome with its attempt number in this ledger.

        ValueError or TypeError if its measurements are not JSON.
        """
        with self._transaction("write to"):
            return self._append(outcome, merged=False) or outcome

    def get(self, key: str) -> Outcome | None:
        """The outcome that a later run may use instead of running `key` again, or None."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """Key -> reusable outcome, for the keys that have one."""
        return self._first_intact(keys, LATEST_REUSABLE)

    def latest(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """Key -> the last recorded outcome in any state, for the keys that have one."""
        return self._first_intact(keys, "ORDER BY id DESC")

    def history(
        self, *, key: str | None = None, check: str | None = None, run_id: str | None = None, limit: int = 100
    ) -> tuple[Outcome, ...]:
        """Outcomes in any state, newest first, that match all of `key`, `check` and `run_id` that are given.

        With a key they are ordered by when they finished, otherwise by when they were added to this ledger.
        """
        columns = {"key": key, "check_name": check, "run_id": run_id}
        given = {column: value for column, value in columns.items() if value is not None}
        where = " AND ".join(f"{column} = ?" for column in given) or "1"
        order = f"{OUTCOME_TIME} DESC, id DESC" if key is not None else "id DESC"
        with database_errors(self.path, "read"):
            rows = self._db.execute(
                f"SELECT uid, attempt, body FROM outcomes WHERE {where} ORDER BY {order} LIMIT ?",  # noqa: S608
                (*given.values(), limit),
            )
            return tuple(self._intact_outcomes(rows))

    def next_attempt(self, key: str) -> int:
        """The attempt number of the next outcome of `key`, counted from 1."""
        with database_errors(self.path, "read"):
            return self._next_attempt(key)

    def typical_seconds(self) -> dict[str, float]:
        """Check name -> median wall time in seconds of its last completed executions."""
        with database_errors(self.path, "read"):
            typical = {}
            for (name,) in self._db.execute("SELECT DISTINCT check_name FROM outcomes").fetchall():
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
        host: Mapping[str, str],
        *,
        now: float | None = None,
    ) -> str:
        """Record the start of a run, with its plan; returns the run's id. Ids sort by start time."""
        started = time.time() if now is None else now
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(started))
        run_id = f"{stamp}-{uuid.uuid4().hex[:8]}"
        body = canonical_json(plan)
        digest = digest_bytes(body.encode())
        with self._transaction("write to"):
            # Storing a known plan again repairs it, should its text have changed.
            self._db.execute(PUT_PLAN, (digest, body))
            self._db.execute(
                "INSERT INTO runs (run_id, started, argv, host, plan) VALUES (?, ?, ?, ?, ?)",
                (run_id, started, canonical_json(readable(argv)), canonical_json(readable(host)), digest),
            )
        return run_id

    def finish_run(self, run_id: str, exit_code: int, *, now: float | None = None) -> None:
        """Record the end of a run; KeyError if there is no such run."""
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
        """Record why entries have no outcome, in one transaction; a later record replaces an earlier one."""
        at = time.time() if now is None else now
        with self._transaction("write to"):
            self._db.executemany(
                "INSERT OR REPLACE INTO dispositions (run_id, cell_id, check_name, key, status, reason, at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(run_id, d.cell_id, d.check, d.key, d.status.value, d.reason, at) for d in dispositions],
            )

    def dispositions(self, run_id: str) -> tuple[Disposition, ...]:
        """The entries that a run left without an outcome, ordered by cell and check."""
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
        """The last run that was started here by `npu-matrix run`, else by any command, else the last merged.

        Runs started here are ordered by their position in the ledger, in case the clock was set back.
        """
        queries = ((f"merged = 0 AND {REQUESTED_RUNS}", "rowid"), ("merged = 0", "rowid"), ("1", RUN_ORDER))
        return next((run for where, order in queries for run in self._runs(where, (), 1, order)), None)

    def merge(self, other: Path) -> int:
        """Add the outcomes and runs of another ledger; returns how many outcomes are new.

        The artifacts in the same folder are copied if they match their digests. Rows that are damaged are
        skipped. InputError if the file is not a ledger.
        """
        if not other.is_file():
            raise InputError("there is no ledger to merge", where=Location(other), fix=f"pass a {FILE_NAME}")
        added = 0
        refs: dict[str, ArtifactRef] = {}
        with self._transaction("merge into"):
            for outcome in self._outcomes_of(other):
                if self._append(outcome, merged=True):
                    added += 1
                refs.update((ref.digest, ref) for ref in outcome.files)
            self._merge_runs(other)
        self.artifacts.copy_from(ArtifactStore(other.parent / "artifacts"), refs.values())
        return added

    def _recover_outcomes(self, damage: DatabaseDamage) -> Notice:
        try:
            copied = self.merge(damage.renamed_to)
        except InputError:
            copied = 0
        return Notice(
            what="the ledger was damaged, and a new one was created; "
            f"the damaged file is now {damage.renamed_to.name}",
            why=f"{self.path}: {damage.why}",
            fix=f"nothing: {copied} readable outcomes were copied to the new ledger, the artifacts are kept, "
            "and the next run repeats the tasks whose outcomes were lost",
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
                    "this file cannot be read as a ledger", where=Location(other), why=str(error)
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
        body = outcome_body(numbered)
        inserted = self._db.execute(
            "INSERT OR IGNORE INTO outcomes "
            "(uid, key, check_name, state, attempt, run_id, merged, started, finished, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                outcome_uid(body),
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

    def _first_intact(self, keys: Iterable[str], condition: str) -> dict[str, Outcome]:
        """Key -> the first undamaged outcome under the SQL `condition`, for the keys that have one."""
        found: dict[str, Outcome] = {}
        with database_errors(self.path, "read"):
            for key in dict.fromkeys(keys):
                rows = self._db.execute(
                    f"SELECT uid, attempt, body FROM outcomes WHERE key = ? {condition}",  # noqa: S608
                    (key,),
                )
                outcome = next(self._intact_outcomes(rows), None)
                if outcome:
                    found[key] = outcome
        return found

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
        """The stored plan; an empty plan if none is stored or its text is not in this format."""
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
