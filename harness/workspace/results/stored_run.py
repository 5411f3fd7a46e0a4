"""Reads a stored run: its plan with the current checks, and the current verdicts of its outcomes."""

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
from harness.report.model.gather import outcomes_of_run
from harness.report.model.report_inputs import ReportInputs
from harness.report.model.runs_before import revision_of
from harness.run.scheduling.altered_outcomes import altered_outcomes
from harness.run.scheduling.run_lock import lock_holder
from harness.settings import Settings
from harness.verdict.ledger_outcomes import stale_dispositions
from harness.verdict.plan_verdicts import judge_plan, summarise_verdicts
from harness.verdict.verdict import Standing, Verdict
from harness.workspace.planning.open_plan import expectations, open_matrix


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run of the ledger, judged by the current checks and expectations. executed: keys that it executed."""

    run: RunRecord
    plan: Plan
    matrix: Matrix
    verdicts: tuple[Verdict, ...]
    executed: frozenset[str]

    @property
    def exit_code(self) -> int:
        """The exit code of the run; EXIT_INCOMPLETE if the run was killed."""
        return EXIT_INCOMPLETE if self.run.exit_code is None else self.run.exit_code


def recorded_run(ledger: Ledger, run_id: str) -> RunRecord:
    """The run with this id; InputError if there is none."""
    run = ledger.run(run_id)
    if run is None:
        raise InputError(f"there is no run {run_id!r}", fix="leave out --run for the latest")
    return run


def open_run(settings: Settings, ledger: Ledger, run_id: str | None) -> StoredRun:
    """The named run or the latest; InputError for an unknown id, NothingSelectedError without any run.

    Outcomes that describe something that was altered since are stale. A running run verifies that itself.
    """
    run = recorded_run(ledger, run_id) if run_id else ledger.latest_run()
    if run is None:
        raise NothingSelectedError("nothing has been run here yet", fix="npu-matrix run")
    plan = plan_of_record(run.plan, {check.name: check for check in all_checks()})
    matrix = open_matrix(settings)
    outcomes = outcomes_of_run(ledger, plan.tasks, run.run_id)
    altered = altered_outcomes(plan.tasks, outcomes, ledger.artifacts) if run.finished is not None else {}
    believed = {key: outcome for key, outcome in outcomes.items() if key not in altered}
    dispositions = [*ledger.dispositions(run.run_id), *stale_dispositions(plan, altered)]
    return StoredRun(
        run=run,
        plan=plan,
        matrix=matrix,
        verdicts=judge_plan(plan, believed, dispositions, expectations(matrix, plan.profile)),
        executed=frozenset(key for key, outcome in outcomes.items() if outcome.run_id == run.run_id),
    )


#: Maximum number of runs that are searched.
RUNS = 1000


def exit_code_today(stored: StoredRun) -> int:
    """The exit code by the current verdicts; an incomplete or interrupted run keeps its own exit code."""
    if stored.run.exit_code in {None, EXIT_INTERRUPTED}:
        return stored.exit_code
    return summarise_verdicts(stored.verdicts).exit_code


def find_run(settings: Settings, ledger: Ledger, name: str) -> str:
    """The id of a run, found by its id, the beginning of its id, or a revision (then its latest run)."""
    if ledger.run(name) is not None:
        return name
    runs = ledger.runs(RUNS)
    found = [run.run_id for run in runs if run.run_id.startswith(name)]
    if len(found) == 1:
        return found[0]
    offered = (
        f"one of: {', '.join((found or [run.run_id for run in runs])[:10])}" if runs else "npu-matrix run"
    )
    if found:
        raise InputError(f"{len(found)} runs begin with {name!r}", fix=offered)
    try:
        commit = resolve_revision(settings.root, name).commit
    except InputError:
        raise InputError(f"there is no run and no commit {name!r}", fix=offered) from None
    clean = [run.run_id for run in runs if revision_of(run) == commit]
    changed = [run.run_id for run in runs if revision_of(run) == f"{commit}+"]
    if not (clean or changed):
        commits = ", ".join(
            list(dict.fromkeys(revision_of(run)[:13] for run in runs if revision_of(run)))[:10]
        )
        raise InputError(
            f"no run was made of commit {commit[:12]} ({name})",
            why=f"there are runs of: {commits}" if commits else "no run recorded its commit",
            fix=f"check it out and run it, or name a run: {offered}",
        )
    return (clean or changed)[0]


def mark_unfinished(inputs: ReportInputs) -> ReportInputs:
    """The inputs of an unfinished run: entries without an outcome are not errors, they have not run yet."""
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
    """Whether a process uses the state folder; a process of another host is assumed to be running."""
    holder = lock_holder(settings.path("state"))
    if holder is None or holder.host != socket.gethostname():
        return holder is not None
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
