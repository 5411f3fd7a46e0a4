"""What changed between two runs: a pure function over what each said of every (cell, check)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from harness.outcome import Status
from harness.report.model.report_inputs import EarlierVerdict

BAD = (Status.FAIL, Status.INCONCLUSIVE)
Pair = tuple[str, str]


class RunChangeKind(str, enum.Enum):
    """How a (cell, check) stands to what an earlier run said of it; most urgent first."""

    BROKEN = "newly broken"
    LOST = "newly not run"
    WEAKER = "on weaker evidence"
    STILL = "still broken"
    FIXED = "fixed"
    GAINED = "newly proved"
    ADDED = "newly planned"
    REMOVED = "no longer planned"


#: What each turn means, in a sentence.
MEANINGS: dict[RunChangeKind, str] = {
    RunChangeKind.BROKEN: "Does not pass now, and was not known to be broken then.",
    RunChangeKind.LOST: "Had an answer then, has none now. Nothing is proved by that.",
    RunChangeKind.WEAKER: "Passes as it did, but on weaker evidence.",
    RunChangeKind.STILL: "Did not pass then, does not pass now.",
    RunChangeKind.FIXED: "Did not pass then, passes now.",
    RunChangeKind.GAINED: "Passes now; then it had no answer, or one on weaker evidence.",
    RunChangeKind.ADDED: "Was not planned then.",
    RunChangeKind.REMOVED: "Was planned then, is not planned now.",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One (cell, check) that is not as it was, or is as bad as it was.

    `before` is None of what was not planned then, `after` of what is not planned now. `causes`: which inputs
    differ; empty when the same inputs gave another answer, or when nothing could be compared.
    """

    turn: RunChangeKind
    cell: str
    check: str
    before: EarlierVerdict | None
    after: EarlierVerdict | None
    causes: tuple[str, ...] = ()

    @property
    def same_inputs(self) -> bool:
        """Whether the key is the same: then it is the machine or chance that differs, not the cell."""
        return bool(self.before and self.after and self.before.key and self.before.key == self.after.key)


def compare(
    before: Mapping[Pair, EarlierVerdict],
    after: Mapping[Pair, EarlierVerdict],
    causes: Mapping[Pair, tuple[str, ...]] | None = None,
) -> tuple[Change, ...]:
    """Every change by turn, in the order of `after` and then of `before`. What is the same is left out,
    unless it is broken in both."""
    found = []
    for pair in dict.fromkeys([*after, *before]):
        turn = run_change_kind(before.get(pair), after.get(pair))
        if turn is not None:
            found.append(
                Change(
                    turn=turn,
                    cell=pair[0],
                    check=pair[1],
                    before=before.get(pair),
                    after=after.get(pair),
                    causes=(causes or {}).get(pair, ()),
                )
            )
    urgency = {turn: place for place, turn in enumerate(RunChangeKind)}
    return tuple(sorted(found, key=lambda change: urgency[change.turn]))


def run_change_kind(before: EarlierVerdict | None, after: EarlierVerdict | None) -> RunChangeKind | None:
    """What one pair's change is called, None when there is nothing to say."""
    if before is None or after is None:
        return RunChangeKind.ADDED if before is None else RunChangeKind.REMOVED
    if after.status in BAD:
        return RunChangeKind.STILL if before.status in BAD else RunChangeKind.BROKEN
    if after.status is Status.PASS:
        if before.status in BAD:
            return RunChangeKind.FIXED
        if before.status is not Status.PASS:
            return RunChangeKind.GAINED
        then, now = (said.evidence.rank if said.evidence else -1 for said in (before, after))
        return None if then == now else RunChangeKind.WEAKER if now < then else RunChangeKind.GAINED
    return RunChangeKind.LOST if before.status in {Status.PASS, *BAD} else None
