"""The return value of a run: the tasks that have an outcome, and why other entries have none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.ledger.run_record import Disposition
from harness.outcome import Judgement, Outcome


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """An outcome and the judgement of its check. `reused`: it was in the ledger before this run."""

    outcome: Outcome
    judgement: Judgement
    reused: bool


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The return value of a run.

    tasks: key -> result, for the tasks of the plan that have an outcome. without_outcome: the other entries,
    in the order of the plan. They were skipped or blocked, or the run was stopped before (status `error`).
    executed, errors and retried are numbers of tasks.
    """

    run_id: str
    tasks: Mapping[str, TaskResult]
    without_outcome: tuple[Disposition, ...]
    executed: int
    errors: int
    retried: int
    seconds: float
    interrupted: bool

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """Key -> outcome."""
        return {key: result.outcome for key, result in self.tasks.items()}

    @property
    def reused(self) -> int:
        """How many tasks were not executed because their outcomes were in the ledger."""
        return sum(result.reused for result in self.tasks.values())

    @property
    def executed_keys(self) -> frozenset[str]:
        """The keys of the tasks that this run executed."""
        return frozenset(key for key, result in self.tasks.items() if not result.reused)
