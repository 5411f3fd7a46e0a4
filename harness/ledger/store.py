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
from typing import Any, Self

from harness.digest import canonical_json, digest_bytes
from harness.errors import InputError, Location
from harness.ledger.artifacts import ArtifactStore
from harness.ledger.attestation.belief import Signers, judge_origin, no_signers
from harness.ledger.attestation.host_identity import host_fingerprint
from harness.ledger.attestation.statement import Attestation, subject_digest
from harness.ledger.database import DatabaseDamage, database_errors, open_database
from harness.ledger.merge_report import ClaimedOutcome, MergeReport, claimed_outcome
from harness.ledger.other_ledger import OtherLedger
from harness.ledger.outcome_record import outcome_body, outcome_uid, readable
from harness.ledger.outcome_row import OUTCOME_COLUMNS, OutcomeRow, read_attestations
from harness.ledger.plan_record import PlanRecord
from harness.ledger.run_record import RUN_COLUMNS, Disposition, RunRecord, read_plan, read_run, read_runs
from harness.outcome import ArtifactRef, Evidence, Origin, Outcome, State, Status

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
    Rows whose content does not match their digest are ignored, and counted in `damaged_rows`. Hardware
    evidence that was neither recorded on this machine nor signed by one of `signers` is not believed: every
    method returns such outcomes with weaker evidence, and with the reason in their `trust`.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        *,
        signers: Signers = no_signers,
        host: str | None = None,
    ) -> None:
        self.path = path
        self.host = host or host_fingerprint()
        self._signers = signers
        self._judged: dict[str, Outcome] = {}
        self.notices: tuple[Notice, ...] = ()
        self.damaged_rows = 0
        self._db = connection
        self.artifacts = ArtifactStore(path.parent / "artifacts")

    @classmethod
    def open(cls, folder: Path, *, signers: Signers = no_signers, host: str | None = None) -> Ledger:
        """Open or create the ledger in the state folder; read `notices` afterwards.

        signers: the runners whose signatures count. host: the fingerprint of this machine, unless it is that
        of `host_fingerprint`.
        A damaged file is renamed, and its readable outcomes are copied to a new ledger. InputError if a newer
        program wrote it, InfrastructureError if it can be neither read nor created.
        """
        path = folder / FILE_NAME
        had_content = (folder / "artifacts" / "sha256").is_dir()
        connection, damage = open_database(path, had_content=had_content)
        ledger = cls(path, connection, signers=signers, host=host)
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
        """Append durably; returns the outcome with its attempt number in this ledger, and its origin.

        ValueError or TypeError if its measurements are not JSON.
        """
        origin = replace(outcome.origin or Origin(host=self.host), recorder=self.host)
        recorded = replace(outcome, origin=origin)
        with self._transaction("write to"):
            return self._append(recorded, merged=False) or recorded

    def attest(self, outcome: Outcome, attestation: Attestation) -> None:
        """Store a runner's signed statement about an outcome. It is verified when the outcome is read."""
        with self._transaction("write to"):
            self._store_attestations(subject_digest(outcome), (attestation,))

    def signer_of(self, outcome: Outcome) -> str:
        """The runner whose signature on the outcome counts, or ""; also for outcomes of this machine."""
        with database_errors(self.path, "read"):
            attestations = read_attestations(self._db, subject_digest(outcome))
        return self._seen_elsewhere(outcome, attestations).trust.signer

    def refusal_of(self, outcome: Outcome, attestation: Attestation) -> str:
        """Why another machine with the same signers would not believe the outcome with this attestation."""
        return self._seen_elsewhere(outcome, (attestation,)).trust.claimed

    def _seen_elsewhere(self, outcome: Outcome, attestations: Iterable[Attestation]) -> Outcome:
        return judge_origin(outcome, attestations, merged=True, host=self.host, signers=self._signers)

    def get(self, key: str) -> Outcome | None:
        """The outcome that a later run may use instead of running `key` again, or None."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """Key -> reusable outcome, for the keys that have one."""
        return self._first_intact(keys, LATEST_REUSABLE, claimed=False)

    def latest(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """Key -> the last recorded outcome in any state, for the keys that have one."""
        return self._first_intact(keys, "ORDER BY id DESC", claimed=True)

    def history(
        self, *, key: str | None = None, check: str | None = None, run_id: str | None = None, limit: int = 100
    ) -> tuple[Outcome, ...]:
        """Outcomes in any state, newest first, that match all of `key`, `check` and `run_id` that are given.

        With a key they are ordered by when they finished, otherwise by when they were added to this ledger;
        those of a run that were recorded here come before merged ones that name the same run.
        """
        columns = {"key": key, "check_name": check, "run_id": run_id}
        given = {column: value for column, value in columns.items() if value is not None}
        where = " AND ".join(f"{column} = ?" for column in given) or "1"
        order = f"{OUTCOME_TIME} DESC, id DESC" if key is not None else "id DESC"
        if run_id is not None:
            order = f"merged, {order}"
        with database_errors(self.path, "read"):
            rows = self._db.execute(
                f"SELECT {OUTCOME_COLUMNS} FROM outcomes WHERE {where} ORDER BY {order} LIMIT ?",  # noqa: S608
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

    def merge(self, other: Path, *, recovering: bool = False) -> MergeReport:
        """Add the outcomes, signed statements and runs of another ledger.

        The artifacts in the same folder are copied if they match their digests. Rows that are damaged are
        skipped. recovering: whether the file is the damaged ledger of this machine, whose outcomes keep what
        it says about their origin. InputError if the file is not a ledger.
        """
        if not other.is_file():
            raise InputError("there is no ledger to merge", where=Location(other), fix=f"pass a {FILE_NAME}")
        read, added, signed = 0, 0, 0
        claimed: list[ClaimedOutcome] = []
        refs: dict[str, ArtifactRef] = {}
        source = OtherLedger(other)
        with self._transaction("merge into"):
            for row, outcome in source.outcomes():
                read += 1
                added += self._append(outcome, merged=bool(row.merged) or not recovering) is not None
                refs.update((ref.digest, ref) for ref in outcome.files)
                if outcome.evidence is Evidence.HARDWARE:
                    self._store_attestations(row.uid, source.attestations(row.uid))
                    believed = self._stored(row.uid)
                    signed += believed is not None and bool(believed.trust.signer)
                    if believed is not None and believed.trust.claimed:
                        claimed.append(claimed_outcome(believed))
            self._merge_runs(other)
        self.artifacts.copy_from(ArtifactStore(other.parent / "artifacts"), refs.values())
        self.damaged_rows += len(source.damaged)
        return MergeReport(
            read=read,
            added=added,
            signed=signed,
            claimed=tuple(claimed),
            damaged=tuple(source.damaged),
            missing_files=tuple(ref.name for ref in refs.values() if not self.artifacts.has(ref)),
        )

    def _recover_outcomes(self, damage: DatabaseDamage) -> Notice:
        try:
            copied = self.merge(damage.renamed_to, recovering=True).added
        except InputError:
            copied = 0
        return Notice(
            what="the ledger was damaged, and a new one was created; "
            f"the damaged file is now {damage.renamed_to.name}",
            why=f"{self.path}: {damage.why}",
            fix=f"nothing: {copied} readable outcomes were copied to the new ledger, the artifacts are kept, "
            "and the next run repeats the tasks whose outcomes were lost",
        )

    def _stored(self, uid: str) -> Outcome | None:
        rows = self._db.execute(f"SELECT {OUTCOME_COLUMNS} FROM outcomes WHERE uid = ?", (uid,))  # noqa: S608
        return next(self._intact_outcomes(rows), None)

    def _store_attestations(self, uid: str, attestations: Iterable[Attestation]) -> None:
        self._judged.pop(uid, None)
        self._db.executemany(
            "INSERT OR IGNORE INTO attestations (uid, statement, signature) VALUES (?, ?, ?)",
            [(uid, one.statement, one.signature) for one in attestations],
        )

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

    def _first_intact(self, keys: Iterable[str], condition: str, *, claimed: bool) -> dict[str, Outcome]:
        """Key -> the first undamaged outcome under the SQL `condition`, for the keys that have one.

        claimed: whether it may be one that is not believed.
        """
        found: dict[str, Outcome] = {}
        with database_errors(self.path, "read"):
            for key in dict.fromkeys(keys):
                rows = self._db.execute(
                    f"SELECT {OUTCOME_COLUMNS} FROM outcomes WHERE key = ? {condition}",  # noqa: S608
                    (key,),
                )
                usable = (one for one in self._intact_outcomes(rows) if claimed or not one.trust.claimed)
                outcome = next(usable, None)
                if outcome:
                    found[key] = outcome
        return found

    def _intact_outcomes(self, rows: Iterable[Sequence[Any]]) -> Iterator[Outcome]:
        for columns in rows:
            row = OutcomeRow(*columns)
            outcome = row.outcome()
            if outcome is None:
                self.damaged_rows += 1
            else:
                yield self._with_trust(row, outcome)

    def _with_trust(self, row: OutcomeRow, outcome: Outcome) -> Outcome:
        if outcome.evidence is not Evidence.HARDWARE:
            return judge_origin(outcome, (), merged=bool(row.merged), host=self.host, signers=self._signers)
        if row.uid not in self._judged:
            self._judged[row.uid] = judge_origin(
                outcome,
                read_attestations(self._db, row.uid),
                merged=bool(row.merged),
                host=self.host,
                signers=self._signers,
            )
        return replace(self._judged[row.uid], attempt=outcome.attempt)

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
