"""Reads a stored run: its plan with the checks of today, and the verdicts of its outcomes."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace

from harness.errors import EXIT_INCOMPLETE, EXIT_INTERRUPTED, InputError, NothingSelectedError
from harness.ledger.run_record import RunRecord
from harness.ledger.store import Ledger
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.plan.change.revision import resolve_revision
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.task import Plan, plan_of_record
from harness.report.model.earlier_runs import revision_of
from harness.report.model.gather import outcomes_of_run
from harness.report.model.report_inputs import ReportInputs
from harness.run.scheduling.run_lock import lock_holder
from harness.settings import Settings
from harness.verdict.plan_verdicts import judge_plan, summarise_verdicts
from harness.verdict.verdict import Standing, Verdict
from harness.workspace.planning.open_plan import expectations, open_matrix


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run of the ledger, judged by the checks and expectations of today."""

    run: RunRecord
    plan: Plan
    matrix: Matrix
    verdicts: tuple[Verdict, ...]
    executed: frozenset[str]

    @property
    def exit_code(self) -> int:
        """The exit code of the run; a run that was killed is incomplete."""
        return EXIT_INCOMPLETE if self.run.exit_code is None else self.run.exit_code


def recorded_run(ledger: Ledger, run_id: str) -> RunRecord:
    """The run with this id; InputError if there is none."""
    run = ledger.run(run_id)
    if run is None:
        raise InputError(f"there is no run {run_id!r}", fix="leave out --run for the latest")
    return run


def open_run(settings: Settings, ledger: Ledger, run_id: str | None) -> StoredRun:
    """The named run or the latest; InputError for an unknown id, NothingSelectedError without any run."""
    run = recorded_run(ledger, run_id) if run_id else ledger.latest_run()
    if run is None:
        raise NothingSelectedError("nothing has been run here yet", fix="npu-matrix run")
    plan = plan_of_record(run.plan, {check.name: check for check in all_checks()})
    matrix = open_matrix(settings)
    outcomes = outcomes_of_run(ledger, plan.tasks, run.run_id)
    dispositions = ledger.dispositions(run.run_id)
    return StoredRun(
        run=run,
        plan=plan,
        matrix=matrix,
        verdicts=judge_plan(plan, outcomes, dispositions, expectations(matrix, plan.profile)),
        executed=frozenset(key for key, outcome in outcomes.items() if outcome.run_id == run.run_id),
    )


#: How many runs are searched for the beginning of an id.
RUNS = 1000


def exit_code_today(stored: StoredRun) -> int:
    """The exit code of the verdicts of today; an incomplete or interrupted run keeps its own."""
    if stored.run.exit_code in {None, EXIT_INTERRUPTED}:
        return stored.exit_code
    return summarise_verdicts(stored.verdicts).exit_code


def find_run(settings: Settings, ledger: Ledger, wanted: str) -> str:
    """The id of the run with this id, this beginning of its id, or of the latest run of this commit."""
    if ledger.run(wanted) is not None:
        return wanted
    runs = ledger.runs(RUNS)
    found = [run.run_id for run in runs if run.run_id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    offered = (
        f"one of: {', '.join((found or [run.run_id for run in runs])[:10])}" if runs else "npu-matrix run"
    )
    if found:
        raise InputError(f"{wanted!r} is the beginning of {len(found)} runs", fix=offered)
    try:
        commit = resolve_revision(settings.root, wanted).commit
    except InputError:
        raise InputError(f"there is no run and no commit {wanted!r}", fix=offered) from None
    clean = [run.run_id for run in runs if revision_of(run) == commit]
    changed = [run.run_id for run in runs if revision_of(run) == f"{commit}+"]
    if not (clean or changed):
        made = dict.fromkeys(revision_of(run)[:13] for run in runs if revision_of(run))
        raise InputError(
            f"no run was made of commit {commit[:12]} ({wanted})",
            why=f"there are runs of: {', '.join(list(made)[:10])}" if made else "no run recorded its commit",
            fix=f"check it out and run it, or name a run: {offered}",
        )
    return (clean or changed)[0]


def mark_unfinished(inputs: ReportInputs) -> ReportInputs:
    """While a run is in progress, an entry without an outcome has not run yet; it is not an error."""
    waiting = [
        replace(
            result,
            verdict=replace(
                result.verdict,
                status=Status.NOT_RUN,
                standing=Standing.AS_EXPECTED,
                reasons=("This run has not started it yet.",),
            ),
        )
        if result.verdict.status is Status.ERROR and result.verdict.outcome is None
        else result
        for result in inputs.results
    ]
    return replace(inputs, results=tuple(waiting))


def is_running(settings: Settings) -> bool:
    """Whether a running process holds the state folder; a process of another host is assumed to run."""
    who = lock_holder(settings.path("state"))
    if who is None or who.host != socket.gethostname():
        return who is not None
    try:
        os.kill(who.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
