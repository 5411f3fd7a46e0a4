"""What a run did: a result per task that has an outcome, and a reason per entry that has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.ledger.run_record import Disposition
from harness.outcome import Judgement, Outcome, Status


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """An outcome and the judgement of its check; `reused` when it was in the ledger before this run."""

    outcome: Outcome
    judgement: Judgement
    reused: bool


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run did.

    tasks: key -> result, for the tasks of the plan that have an outcome. without_outcome: the other entries,
    in the order of the plan: skipped, blocked, or (status `error`) not reached before the run was stopped.
    executed, errors and retried count tasks.
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
        """How many tasks were not executed because the ledger had their outcome."""
        return sum(result.reused for result in self.tasks.values())

    @property
    def executed_keys(self) -> frozenset[str]:
        """The tasks whose outcome was made by this run."""
        return frozenset(key for key, result in self.tasks.items() if not result.reused)

    @property
    def incomplete(self) -> tuple[Disposition, ...]:
        """The entries that were planned and neither run nor blocked nor skipped."""
        return tuple(one for one in self.without_outcome if one.status is Status.ERROR)
