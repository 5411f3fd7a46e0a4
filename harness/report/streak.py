"""How a verdict stands to the ones before it: what changed, and since when it is as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.outcome import Status
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
    answered = [past for past in earlier if past.status in RAN_BEFORE]
    if status not in RAN_BEFORE or not answered:
        return None
    alike = 0
    while alike < len(answered) and answered[-1 - alike].status is status:
        alike += 1
    before = answered[-1 - alike] if alike < len(answered) else None
    first = answered[-alike] if alike else None
    return Streak(
        runs=alike,
        since_run=first.run_id if first else this_run,
        since=first.time if first else now,
        before=before.status if before else None,
        until_run=before.run_id if before else "",
        until=before.time if before else 0.0,
    )
