"""How a verdict stands to the ones before it: what changed, and since when it is as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.outcome import Evidence, Status
from harness.report.inputs import HistoryInput
from harness.report.marks import Mark

NOT_RUN = (Mark.NOT_RUN, Mark.BLOCKED, Mark.STALE, Mark.ERROR)
RAN_BEFORE = (Status.PASS, Status.FAIL, Status.INCONCLUSIVE)
BROKEN, FIXED, LOST = "broken", "fixed", "lost"


@dataclass(frozen=True, kw_only=True)
class Streak:
    """For how many runs before this one it has stood as it stands, since which, and what stood before that.

    `runs` 0 means that this run is the first. `since`, `until` are Unix seconds; `before` is None when
    nothing else is remembered.
    """

    runs: int
    since_run: str
    since: float
    before: Status | None = None
    until_run: str = ""
    until: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Earlier runs in a row that said the same on the same evidence; `inputs` counts the keys they asked."""

    status: Status
    evidence: Evidence | None
    runs: int
    inputs: int
    first_run: str
    first: float
    last_run: str
    last: float


def stretches(history: Sequence[HistoryInput]) -> tuple[Stretch, ...]:
    """The history with what repeats said once, oldest first."""
    found: list[Stretch] = []
    runs: list[HistoryInput] = []
    for past in history:
        # Looked at once for every run of every check: two comparisons, and nothing is made.
        if runs and (past.status is not runs[0].status or past.evidence is not runs[0].evidence):
            found.append(_stretch(runs))
            runs = []
        runs.append(past)
    if runs:
        found.append(_stretch(runs))
    return tuple(found)


def _stretch(runs: Sequence[HistoryInput]) -> Stretch:
    first, last = runs[0], runs[-1]
    return Stretch(
        status=first.status,
        evidence=first.evidence,
        runs=len(runs),
        inputs=len({past.key for past in runs if past.key}),
        first_run=first.run_id,
        first=first.time,
        last_run=last.run_id,
        last=last.time,
    )


def change_of(earlier: Sequence[HistoryInput], now: Mark) -> str:
    """Against the last run that had an answer: a run in between that had none hides nothing."""
    if not earlier:
        return ""
    if now in NOT_RUN:
        return LOST if earlier[-1].status in RAN_BEFORE else ""
    before = next((past.status for past in reversed(earlier) if past.status in RAN_BEFORE), None)
    if before is Status.PASS and now in {Mark.FAIL, Mark.KNOWN_FAIL, Mark.INCONCLUSIVE}:
        return BROKEN
    if before in {Status.FAIL, Status.INCONCLUSIVE} and now in {Mark.PASS, Mark.UNEXPECTED_PASS}:
        return FIXED
    return ""


def streak_of(earlier: Sequence[HistoryInput], status: Status, *, this_run: str, now: float) -> Streak | None:
    """The first bad run, of what is bad; the first good one, of what is good."""
    if status not in RAN_BEFORE:
        return None
    alike, first, before = 0, None, None
    for past in reversed(earlier):
        if past.status is status:
            alike, first = alike + 1, past
        elif past.status in RAN_BEFORE:
            before = past
            break
    if first is None and before is None:
        return None
    return Streak(
        runs=alike,
        since_run=first.run_id if first else this_run,
        since=first.time if first else now,
        before=before.status if before else None,
        until_run=before.run_id if before else "",
        until=before.time if before else 0.0,
    )
