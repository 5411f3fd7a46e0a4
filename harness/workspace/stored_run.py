"""A stored run read back: its plan with the checks of today, and the verdicts on its outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import EXIT_INCOMPLETE, InputError, NothingSelectedError
from harness.settings import Settings
from harness.workspace.open_plan import expectations, open_matrix

if TYPE_CHECKING:
    from harness.ledger.run_record import Run
    from harness.ledger.store import Ledger
    from harness.matrix.version_matrix import Matrix
    from harness.plan.tasks.task import Plan
    from harness.verdict.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """A run of the ledger, judged as its checks and expectations stand today."""

    run: Run
    plan: Plan
    matrix: Matrix
    verdicts: tuple[Verdict, ...]
    executed: frozenset[str]

    @property
    def exit_code(self) -> int:
        """The code of the run; a run that was killed is incomplete."""
        return EXIT_INCOMPLETE if self.run.exit_code is None else self.run.exit_code


def open_run(settings: Settings, ledger: Ledger, run_id: str | None) -> StoredRun:
    """The named run or the latest; InputError for a name no run has, NothingSelectedError without a run."""
    from harness.plan.tasks.check_registry import all_checks
    from harness.plan.tasks.task import plan_of_record
    from harness.report.model.gather import outcomes_of_run
    from harness.verdict.join import Disposition, judge_plan

    run = ledger.run(run_id) if run_id else ledger.latest_run()
    if run is None:
        if run_id:
            raise InputError(f"there is no run {run_id!r}", fix="leave out --run for the latest")
        raise NothingSelectedError("nothing has been run here yet", fix="npu-matrix run")
    plan = plan_of_record(run.plan, {check.name: check for check in all_checks()})
    matrix = open_matrix(settings)
    outcomes = outcomes_of_run(ledger, plan.tasks, run.run_id)
    dispositions = {
        (left.cell_id, left.check): Disposition(status=left.status, reason=left.reason)
        for left in ledger.dispositions(run.run_id)
    }
    return StoredRun(
        run=run,
        plan=plan,
        matrix=matrix,
        verdicts=judge_plan(plan, outcomes, dispositions, expectations(matrix, plan.profile)),
        executed=frozenset(key for key, outcome in outcomes.items() if outcome.run_id == run.run_id),
    )
