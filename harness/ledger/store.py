"""The ledger: all recorded outcomes, the runs that recorded them, and why entries of runs have no outcome."""

from __future__ import annotations

import shutil
import sqlite3
import statistics
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from harness.digest import canonical_json
from harness.errors import InfrastructureError, Location, Problem
from harness.evidence import strongest_evidence
from harness.ledger import run_rows
from harness.ledger.artifacts import ArtifactStore
from harness.ledger.attestation.belief import Signers, judge_origin, no_signers
from harness.ledger.attestation.host_identity import host_fingerprint
from harness.ledger.attestation.statement import Attestation, subject_digest
from harness.ledger.database import database_errors, file_identity, open_database
from harness.ledger.ledger_notice import clock_notice, damage_notice
from harness.ledger.lost_rows import LostRows
from harness.ledger.merge_report import ClaimedOutcome, MergeReport, Screen, claimed_outcome
from harness.ledger.other_ledger import OtherLedger
from harness.ledger.outcome_record import readable
from harness.ledger.outcome_row import OUTCOME_COLUMNS, Merged, OutcomeRow, read_attestations
from harness.ledger.plan_record import PlanRecord
from harness.ledger.run_record import Disposition, RunRecord
from harness.ledger.sealed_rows import next_row_id
from harness.outcome import RECORDED_HERE, ArtifactRef, Evidence, Origin, Outcome, State, Trust

FILE_NAME = "ledger.sqlite3"
MAX_TIMING_SAMPLES = 20
#: Clocks that are kept right by NTP are adjusted by less.
CLOCK_TOLERANCE_S = 2.0
# Leaves out runs that other commands started (bisect, ablate, reruns).
REQUESTED_RUNS = """(argv = '[]' OR argv LIKE '%"run"%')"""
# All orders are those in which rows were added to this ledger, never those of clocks, which can be set back.
# Merged rows are added when they are merged, in the order of their own ledger.
# Outcomes recorded here come before merged ones: their files, for example environments, are on this machine.
# Not after a failure without measurements: what was measured before may not be true any more.
REUSABLE = """AND id <= :end AND state = 'completed' AND NOT EXISTS (
    SELECT 1 FROM outcomes AS later WHERE later.key = outcomes.key AND later.id BETWEEN outcomes.id AND :end
    AND later.merged <= outcomes.merged AND later.state IN ('timeout', 'error')
) ORDER BY merged, id DESC"""
LAST_POSITION = 2**63 - 1


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
        self.notices: tuple[Problem, ...] = ()
        self.damaged_rows = 0
        with database_errors(path, "read"):
            self.lost = LostRows.read(connection)
        self._db = connection
        self._file = file_identity(path)
        self._copy: Path | None = None
        self._remove_copy: Callable[[], object] = lambda: None
        self.artifacts = ArtifactStore(path.parent / "artifacts")

    @classmethod
    def open(cls, folder: Path, *, signers: Signers = no_signers, host: str | None = None) -> Ledger:
        """Open or create the ledger in the state folder; read `notices` afterwards.

        signers: the runners whose signatures count. host: the fingerprint of this machine, unless it is that
        of `host_fingerprint`. Of a damaged ledger everything believable is copied to a new one, and the
        damaged file is kept. A ledger that this process cannot write can be read. InputError if a newer
        program wrote it, InfrastructureError if it can be neither read nor created.
        """
        return cls._open(folder / FILE_NAME, read_only=False, signers=signers, host=host)

    @classmethod
    def read(cls, file: Path, *, signers: Signers = no_signers) -> Ledger:
        """Open a ledger file, for example of another project, without changing anything there.

        InputError if nothing in it can be believed.
        """
        return cls._open(file, read_only=True, signers=signers, host=None)

    @classmethod
    def _open(cls, path: Path, *, read_only: bool, signers: Signers, host: str | None) -> Ledger:
        opened = open_database(path, read_only=read_only)
        ledger = cls(path, opened.connection, signers=signers, host=host)
        if opened.copy is not None:
            ledger._copy = opened.copy
            ledger._remove_copy = weakref.finalize(ledger, shutil.rmtree, opened.copy, ignore_errors=True)
        if opened.damage:
            ledger.notices = (damage_notice(path, opened.damage, read_only=opened.copy is not None),)
        return ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. No outcome is lost if this is not called."""
        self._db.close()
        self._remove_copy()

    def record(self, outcome: Outcome) -> Outcome:
        """Append durably; returns the outcome with its attempt number in this ledger, and its origin.

        ValueError or TypeError if its measurements are not JSON.
        """
        origin = replace(outcome.origin or Origin(host=self.host), recorder=self.host)
        recorded = replace(outcome, origin=origin)
        with self._transaction("write to"):
            return self._append(recorded, Merged.NO) or recorded

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
        return self._seen_elsewhere(outcome, (attestation,)).trust.unsigned

    def _seen_elsewhere(self, outcome: Outcome, attestations: Iterable[Attestation]) -> Outcome:
        return judge_origin(outcome, attestations, merged=True, host=self.host, signers=self._signers)

    def get(self, key: str) -> Outcome | None:
        """The outcome that a later run may use instead of running `key` again, or None."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """Key -> reusable outcome, for the keys that have one: completed, and not followed by a failure."""
        return self._newest_known(self._first_intact(keys, REUSABLE, claimed=False))

    def reusable_in_run(self, keys: Iterable[str], run_id: str) -> dict[str, Outcome]:
        """Key -> the outcome that a run reused, as far as it is still known: later outcomes are left out."""
        kept = [key for key in keys if not self.lost.outcome_of_run(run_id, key)]
        end = self.run_ends().get(run_id, LAST_POSITION)
        return self._newest_known(self._first_intact(kept, REUSABLE, claimed=False, end=end))

    def latest(self, keys: Iterable[str]) -> dict[str, Outcome]:
        """Key -> the last recorded outcome in any state, for the keys that have one."""
        return self._newest_known(self._first_intact(keys, "ORDER BY id DESC", claimed=True))

    def history(
        self, *, key: str | None = None, check: str | None = None, run_id: str | None = None, limit: int = 100
    ) -> tuple[Outcome, ...]:
        """Outcomes in any state, newest first, that match all of `key`, `check` and `run_id` that are given.

        Newest are those that were added to this ledger last. With a key there are none if a newer outcome of
        the key was lost: what is older is not its state. Of a run, outcomes that were recorded here come
        before merged ones.
        """
        columns = {"key": key, "check_name": check, "run_id": run_id}
        given = {column: value for column, value in columns.items() if value is not None}
        where = " AND ".join(f"{column} = ?" for column in given) or "1"
        order = "merged, id DESC" if run_id is not None else "id DESC"
        with database_errors(self.path, "read"):
            rows = self._db.execute(
                f"SELECT {OUTCOME_COLUMNS} FROM outcomes WHERE {where} ORDER BY {order} LIMIT ?",  # noqa: S608
                (*given.values(), limit),
            )
            found = tuple(self._intact_outcomes(rows))
        return () if key is not None and found and self._is_superseded(found[0]) else found

    def positions(self, key: str) -> dict[int, int]:
        """Attempt -> position in the order of this ledger, for all outcomes of a key."""
        with database_errors(self.path, "read"):
            return dict(self._db.execute("SELECT attempt, id FROM outcomes WHERE key = ?", (key,)))

    def run_ends(self) -> dict[str, int]:
        """Run -> the position after which outcomes are later than the run; oldest run first."""
        with database_errors(self.path, "read"):
            return run_rows.run_ends(self._db)

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
        row = (run_id, started, None, None, canonical_json(readable(argv)), canonical_json(readable(host)))
        with self._transaction("write to"):
            run_rows.insert_run(
                self._db, row, run_rows.insert_plan(self._db, canonical_json(plan)), merged=False
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

    def set_runs_aside(self, argument: str) -> None:
        """Note that the user did not request the runs with this command-line argument, as for merged runs."""
        with self._transaction("write to"):
            self._db.execute(
                "UPDATE runs SET merged = 1 WHERE merged = 0 AND instr(argv, ?)",
                (canonical_json(readable(argument)),),
            )

    def record_dispositions(
        self, run_id: str, dispositions: Iterable[Disposition], *, now: float | None = None
    ) -> None:
        """Record why entries have no outcome, in one transaction; a later record replaces an earlier one."""
        at = time.time() if now is None else now
        with self._transaction("write to"):
            run_rows.put_dispositions(self._db, run_id, dispositions, at)

    def dispositions(self, run_id: str) -> tuple[Disposition, ...]:
        """The entries that a run left without an outcome, ordered by cell and check."""
        with database_errors(self.path, "read"):
            return run_rows.select_dispositions(self._db, run_id)

    def runs(self, limit: int = 100) -> tuple[RunRecord, ...]:
        """The last runs, newest first."""
        return self._runs("1", (), limit)

    def run(self, run_id: str) -> RunRecord | None:
        """The run with this id, or None."""
        return next(iter(self._runs("run_id = ?", (readable(run_id),), 1)), None)

    def latest_run(self) -> RunRecord | None:
        """The last run that was started here by `npu-matrix run`, else by any command, else the last merged.

        InfrastructureError if the record of a later run was lost.
        """
        queries = (f"merged = 0 AND {REQUESTED_RUNS}", "merged = 0", "1")
        run = next((run for where in queries for run in self._runs(where, (), 1)), None)
        with database_errors(self.path, "read"):
            lost = self.lost.run_after(run_rows.run_position(self._db, run.run_id) if run else 0)
        if lost is not None:
            raise InfrastructureError(
                "the record of the last run was lost",
                where=Location(self.path),
                why=f"the ledger was damaged: {lost}",
                fix="repeat the run; tasks whose outcomes are still stored are not repeated",
            )
        return run

    def clock_notice(self, run_id: str) -> Problem | None:
        """A notice if this run, by its clock, started before the previous run of this machine had ended."""
        with database_errors(self.path, "read"):
            found = run_rows.seconds_before_previous_end(self._db, readable(run_id))
        return clock_notice(run_id, *found) if found and found[1] > CLOCK_TOLERANCE_S else None

    def merge(self, other: Path, screen: Screen | None = None, *, written_here: bool = False) -> MergeReport:
        """Add the outcomes, signed statements and runs of another ledger.

        The artifacts in the same folder are copied if they match their digests. Left out are damaged rows,
        and outcomes and runs in which `screen` finds credentials. written_here: only programs that this
        process started wrote that ledger, so hardware outcomes that it says this machine measured are
        believed. InputError if the file is not a ledger.
        """
        merged = Merged.FROM_HERE if written_here else Merged.YES
        read, added, signed = 0, 0, 0
        claimed: list[ClaimedOutcome] = []
        refs: dict[str, ArtifactRef] = {}
        secret: list[str] = []
        files = ArtifactStore(other.parent / "artifacts")
        with OtherLedger(other) as source, self._transaction("merge into"):
            secret_runs, on_hardware = self._merge_runs(source, screen)
            for row, outcome in source.outcomes():
                read += 1
                attestations = source.attestations(row.uid)
                if screen and (problem := screen.problem(outcome, attestations, files)):
                    secret.append(f"{outcome.check} (key {outcome.key[:12]}): {problem}")
                    continue
                added += self._append(outcome, merged) is not None
                refs.update((ref.digest, ref) for ref in outcome.files)
                if attestations or outcome.evidence is Evidence.HARDWARE or outcome.key in on_hardware:
                    self._store_attestations(row.uid, attestations)
                    trust = self._trust_in(row.uid)
                    signed += bool(trust.signer)
                    if why := trust.claimed or (trust.unsigned if outcome.key in on_hardware else ""):
                        claimed.append(claimed_outcome(outcome, why))
        self.artifacts.copy_from(files, refs.values())
        self.damaged_rows += len(source.damaged)
        return MergeReport(
            read=read,
            added=added,
            signed=signed,
            claimed=tuple(claimed),
            secret=tuple(secret),
            secret_runs=tuple(secret_runs),
            damaged=tuple(source.damaged),
            missing_files=tuple(ref.name for ref in refs.values() if not self.artifacts.is_intact(ref)),
        )

    def _trust_in(self, uid: str) -> Trust:
        rows = self._db.execute(f"SELECT {OUTCOME_COLUMNS} FROM outcomes WHERE uid = ?", (uid,))  # noqa: S608
        return next((stored.trust for stored in self._intact_outcomes(rows)), RECORDED_HERE)

    def _store_attestations(self, uid: str, attestations: Iterable[Attestation]) -> None:
        self._judged.pop(uid, None)
        self._db.executemany(
            "INSERT OR IGNORE INTO attestations (uid, statement, signature) VALUES (?, ?, ?)",
            [(uid, one.statement, one.signature) for one in attestations],
        )

    def _merge_runs(self, other: OtherLedger, screen: Screen | None) -> tuple[list[str], set[str]]:
        """Add the runs of another ledger.

        Returns the ids of those that contain credentials and are left out, and the keys of all tasks that
        only hardware can run.
        """
        secret: list[str] = []
        on_hardware: set[str] = set()
        for run, body, planned in other.runs():
            on_hardware |= {
                task.key
                for task in planned.tasks
                if strongest_evidence(task.tier, task.facets) is Evidence.HARDWARE
            }
            run_id = str(run[0])
            if screen and (screen.has_credential(run_id) or screen.has_credential(body)):
                secret.append(screen.text(run_id))
                continue
            # The last columns are the command and the machine.
            told = run[-2:] if screen is None else [screen.text(str(one)) for one in run[-2:]]
            plan = run_rows.insert_plan(self._db, body)
            run_rows.insert_run(self._db, (*run[:-2], *told), plan, merged=True)
        return secret, on_hardware

    def _append(self, outcome: Outcome, merged: Merged) -> Outcome | None:
        numbered = replace(outcome, attempt=self._next_attempt(outcome.key))
        row = OutcomeRow.of(numbered, merged)
        inserted = self._db.execute(
            f"INSERT OR IGNORE INTO outcomes (id, {OUTCOME_COLUMNS}) "  # noqa: S608
            f"VALUES ({next_row_id('outcomes')}, {', '.join('?' * len(row))})",
            row,
        ).rowcount
        return numbered if inserted else None

    def _next_attempt(self, key: str) -> int:
        row = self._db.execute("SELECT coalesce(max(attempt), 0) + 1 FROM outcomes WHERE key = ?", (key,))
        return int(row.fetchone()[0])

    def _first_intact(
        self, keys: Iterable[str], condition: str, *, claimed: bool, end: int = LAST_POSITION
    ) -> dict[str, Outcome]:
        """Key -> the first undamaged outcome under the SQL `condition`, for the keys that have one.

        claimed: whether it may be one that is not believed. end: the last position that `condition` may use.
        """
        found: dict[str, Outcome] = {}
        with database_errors(self.path, "read"):
            for key in dict.fromkeys(keys):
                rows = self._db.execute(
                    f"SELECT {OUTCOME_COLUMNS} FROM outcomes WHERE key = :key {condition}",  # noqa: S608
                    {"key": key, "end": end},
                )
                usable = (one for one in self._intact_outcomes(rows) if claimed or not one.trust.claimed)
                outcome = next(usable, None)
                if outcome:
                    found[key] = outcome
        return found

    def _newest_known(self, found: dict[str, Outcome]) -> dict[str, Outcome]:
        return {key: outcome for key, outcome in found.items() if not self._is_superseded(outcome)}

    def _is_superseded(self, outcome: Outcome) -> bool:
        """Whether a newer outcome of the same key was lost."""
        if not self.lost.rows:
            return False
        position = self.positions(outcome.key)[outcome.attempt]
        return self.lost.hide(outcome.key, outcome.check, position)

    def _intact_outcomes(self, rows: Iterable[Sequence[Any]]) -> Iterator[Outcome]:
        for columns in rows:
            row = OutcomeRow(*columns)
            outcome = row.outcome()
            if outcome is None:
                self.damaged_rows += 1
            else:
                yield self._with_trust(row, outcome)

    def _with_trust(self, row: OutcomeRow, outcome: Outcome) -> Outcome:
        if row.uid in self._judged:
            return replace(self._judged[row.uid], attempt=outcome.attempt)
        attestations = read_attestations(self._db, row.uid)
        judged = judge_origin(
            outcome,
            attestations,
            merged=row.merged != Merged.NO,
            host=self.host,
            signers=self._signers,
            written_here=row.merged == Merged.FROM_HERE,
        )
        if attestations:
            # Verifying a signature starts a program.
            self._judged[row.uid] = judged
        return judged

    def _runs(self, where: str, values: tuple[str, ...], limit: int) -> tuple[RunRecord, ...]:
        with database_errors(self.path, "read"):
            return run_rows.select_runs(self._db, where, values, limit)

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[None]:
        with database_errors(self.path, doing):
            self._follow_replaced_file()
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _follow_replaced_file(self) -> None:
        """Open the ledger again if another process replaced a damaged one meanwhile."""
        if self._copy is None and self._file != file_identity(self.path):
            self._db.close()
            self._db = open_database(self.path).connection
            self._file = file_identity(self.path)
            self.lost = LostRows.read(self._db)
