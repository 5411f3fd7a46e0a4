"""Compares the verdicts of two runs, check by check, and says what kind of change each difference is."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from harness.outcome import Status
from harness.report.model.streak import EarlierVerdict
from harness.verdict.verdict import Standing

BAD = (Status.FAIL, Status.INCONCLUSIVE)
Pair = tuple[str, str]


class RunChangeKind(str, enum.Enum):
    """How the verdict on a check of a cell changed since an earlier run; most urgent first."""

    BROKEN = "newly broken"
    LOST = "newly not run"
    WEAKER = "on weaker evidence"
    STILL = "still broken"
    FIXED = "fixed"
    GAINED = "newly proved"
    ADDED = "newly planned"
    REMOVED = "no longer planned"


#: What each kind of change means, in a sentence.
MEANINGS: dict[RunChangeKind, str] = {
    RunChangeKind.BROKEN: "Does not pass in this run; did not fail in the earlier run.",
    RunChangeKind.LOST: "Had an outcome in the earlier run and has none in this run. This proves nothing.",
    RunChangeKind.WEAKER: "Passes in both runs, but on weaker evidence in this run.",
    RunChangeKind.STILL: "Does not pass in either run.",
    RunChangeKind.FIXED: "Did not pass in the earlier run; passes in this run.",
    RunChangeKind.GAINED: "Passes in this run; had no outcome in the earlier run, or one on weaker evidence.",
    RunChangeKind.ADDED: "Was not planned in the earlier run.",
    RunChangeKind.REMOVED: "Was planned in the earlier run; is not planned in this run.",
}


@dataclass(frozen=True, kw_only=True)
class RunChange:
    """A check of a cell whose verdict changed, or that still does not pass.

    before, after: None if the check was not planned in the earlier run, or is not planned in this one.
    causes: which inputs differ; empty if they are the same or cannot be compared.
    """

    turn: RunChangeKind
    cell: str
    check: str
    before: EarlierVerdict | None
    after: EarlierVerdict | None
    causes: tuple[str, ...] = ()

    @property
    def expected(self) -> bool:
        """Whether an expectation covers the failure."""
        return bool(self.after and self.after.standing is Standing.KNOWN)

    @property
    def same_inputs(self) -> bool:
        """Whether the key is the same: then the machine or chance caused the change, not an input."""
        return bool(self.before and self.after and self.before.key and self.before.key == self.after.key)


def compare(
    before: Mapping[Pair, EarlierVerdict],
    after: Mapping[Pair, EarlierVerdict],
    causes: Mapping[Pair, tuple[str, ...]] | None = None,
) -> tuple[RunChange, ...]:
    """Every change, most urgent kind first. Equal verdicts are left out, unless neither run passes."""
    changes = []
    for pair in dict.fromkeys([*after, *before]):
        turn = run_change_kind(before.get(pair), after.get(pair))
        if turn is not None:
            changes.append(
                RunChange(
                    turn=turn,
                    cell=pair[0],
                    check=pair[1],
                    before=before.get(pair),
                    after=after.get(pair),
                    causes=(causes or {}).get(pair, ()),
                )
            )
    urgency = {turn: rank for rank, turn in enumerate(RunChangeKind)}
    return tuple(sorted(changes, key=lambda change: urgency[change.turn]))


def run_change_kind(before: EarlierVerdict | None, after: EarlierVerdict | None) -> RunChangeKind | None:
    """The kind of change between two verdicts on one check of one cell, or None if nothing changed."""
    if before is None or after is None:
        return RunChangeKind.ADDED if before is None else RunChangeKind.REMOVED
    if after.status in BAD:
        return RunChangeKind.STILL if before.status in BAD else RunChangeKind.BROKEN
    if after.status is Status.PASS:
        if before.status in BAD:
            return RunChangeKind.FIXED
        if before.status is not Status.PASS:
            return RunChangeKind.GAINED
        then, now = (verdict.evidence.rank if verdict.evidence else -1 for verdict in (before, after))
        return None if then == now else RunChangeKind.WEAKER if now < then else RunChangeKind.GAINED
    return RunChangeKind.LOST if before.status in {Status.PASS, *BAD} else None
