"""What a run did: one result per entry of its plan."""

from __future__ import annotations

from dataclasses import dataclass

from harness.ledger.plan_record import Entry
from harness.outcome import Outcome, Status


@dataclass(frozen=True, kw_only=True)
class EntryResult:
    """How one entry of the plan ended. `outcome` is None where it has none, and `reason` says why."""

    entry: Entry
    status: Status
    outcome: Outcome | None = None
    reused: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run did; one `EntryResult` per entry of the plan, in its order.

    executed, reused, errors and retried count tasks; blocked, not_run and incomplete are of entries.
    `incomplete` lists the planned entries that were neither answered nor blocked nor skipped: the run
    stopped before them.
    """

    run_id: str
    entries: tuple[EntryResult, ...]
    executed: int
    reused: int
    errors: int
    retried: int
    seconds: float
    interrupted: bool
    incomplete: tuple[Entry, ...] = ()

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """Key -> outcome, of every task of the plan that has one."""
        return {one.outcome.key: one.outcome for one in self.entries if one.outcome}

    @property
    def blocked(self) -> int:
        """Entries not run because a check before them failed."""
        return sum(one.status is Status.BLOCKED and not one.outcome for one in self.entries)

    @property
    def not_run(self) -> int:
        """Entries that cannot be run here, with the reason in each."""
        return sum(one.entry.skip is not None for one in self.entries)
