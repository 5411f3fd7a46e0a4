"""When the verdict on a check of a cell turned from pass to failure or back, and what had changed by then.

A break is told from chance by keys: a key covers all inputs of a check, so equal keys with different verdicts
are due to chance or to the machine, and different keys name the input that changed.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.outcome import Evidence, Status
from harness.report.model.marks import Mark
from harness.report.model.streak import HistoryEntry

BAD = (Status.FAIL, Status.INCONCLUSIVE)


class TurnCause(str, enum.Enum):
    """What explains that a verdict turned."""

    INPUTS = "inputs"
    FLAKY = "flaky"
    MACHINE = "machine"
    UNKNOWN = "unknown"


class ChangedPart(str, enum.Enum):
    """The part of the repository that a changed input comes from."""

    MATRIX = "matrix"
    PATCHES = "patches"
    CODE = "code"


@dataclass(frozen=True, kw_only=True)
class RunOfTurn:
    """A run before or after a turn. time: Unix seconds. revision: its commit. machine: where it was measured;
    both "" if that is not recorded. known_at: the commit of an earlier run with the same inputs, if this run
    recorded none.
    """

    run_id: str
    time: float
    revision: str = ""
    machine: str = ""
    known_at: str = ""


@dataclass(frozen=True, kw_only=True)
class KeyAttempts:
    """How often the checks of one key passed and failed, and on which machines."""

    passed: int = 0
    failed: int = 0
    passed_on: tuple[str, ...] = ()
    failed_on: tuple[str, ...] = ()

    @property
    def mixed(self) -> bool:
        """Whether the same inputs passed and failed on one machine, or on machines that are not known."""
        if not (self.passed and self.failed):
            return False
        return bool({*self.passed_on} & {*self.failed_on}) or not (self.passed_on and self.failed_on)

    @property
    def by_machine(self) -> bool:
        """Whether the same inputs pass on some machines and fail on others."""
        return bool(self.passed and self.failed) and not self.mixed


@dataclass(frozen=True, kw_only=True)
class KeyDifference:
    """The inputs in which the keys before and after a turn differ, as sentences, and where they come from.

    commits: full ids of commits of upstreams, before and after.
    """

    changes: tuple[str, ...] = ()
    parts: tuple[ChangedPart, ...] = ()
    commits: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A verdict that turned. better: from failure to pass. before, after: the last run with the old verdict
    and the first with the new one. attempts: those with the inputs of `after`; those with the inputs of
    `before` if only these passed and failed on one machine."""

    cell_id: str
    check: str
    better: bool
    mark: Mark
    reason: str
    evidence: Evidence | None
    before: RunOfTurn
    after: RunOfTurn
    cause: TurnCause
    difference: KeyDifference
    attempts: KeyAttempts


def turned(history: Sequence[HistoryEntry]) -> list[tuple[HistoryEntry, HistoryEntry]]:
    """The neighbours in a history between which the verdict turned; runs without a verdict do not count."""
    found = []
    last: HistoryEntry | None = None
    for past in history:
        status = past.verdict.status
        if status is not Status.PASS and status not in BAD:
            continue
        if last is not None and (last.verdict.status is Status.PASS) != (status is Status.PASS):
            found.append((last, past))
        last = past
    return found


def turn_cause(
    before: KeyAttempts, after: KeyAttempts, difference: KeyDifference | None, keys: Collection[str]
) -> TurnCause:
    """What explains a turn. before, after: the attempts of the two keys. difference: None if the inputs of a
    key are not stored. keys: the two keys; one if they are equal."""
    if after.mixed or before.mixed:
        return TurnCause.FLAKY
    if len(keys) == 1:
        return TurnCause.MACHINE if after.by_machine else TurnCause.FLAKY
    return TurnCause.INPUTS if difference and difference.changes else TurnCause.UNKNOWN
