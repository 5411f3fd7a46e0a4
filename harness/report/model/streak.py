"""How a verdict stands to the ones before it: what changed, and since when it is as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter

from harness.outcome import Evidence, Status
from harness.report.model.marks import Mark
from harness.report.model.report_inputs import HistoryEntry

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


@dataclass(frozen=True, kw_only=True, eq=False)
class CondensedHistory:
    """A history with what repeats said once, oldest first; the same one for all that is alike.

    turned: places in the history where an input was not what it was in the run before.
    """

    stretches: tuple[Stretch, ...] = ()
    turned: tuple[int, ...] = ()


#: run, its time, status, evidence, and the number of its key among the keys of this history, -1 without one.
_Said = tuple[str, float, str, str, int]


def condensed_history(history: Sequence[HistoryEntry]) -> CondensedHistory:
    """Checks that ran in the same runs and said the same share their past: most of a large report."""
    keys: dict[str, int] = {}
    number = keys.setdefault
    return _past(
        tuple(
            [
                (
                    said.run_id,
                    said.time,
                    said.status._value_,
                    said.evidence._value_ if said.evidence else "",
                    number(said.key, len(keys)) if said.key else -1,
                )
                for said in history
            ]
        )
    )


@lru_cache(maxsize=16_384)
def _past(history: tuple[_Said, ...]) -> CondensedHistory:
    return CondensedHistory(
        stretches=tuple(
            _stretch(status, evidence, list(runs))
            for (status, evidence), runs in groupby(history, key=itemgetter(2, 3))
        ),
        turned=tuple(
            place
            for place, ((*_, old), (*_, new)) in enumerate(pairwise(history), 1)
            if old != new and old >= 0 and new >= 0
        ),
    )


def _stretch(status: str, evidence: str, runs: Sequence[_Said]) -> Stretch:
    first, last = runs[0], runs[-1]
    return Stretch(
        status=Status(status),
        evidence=Evidence(evidence) if evidence else None,
        runs=len(runs),
        inputs=len({key for *_, key in runs if key >= 0}),
        first_run=first[0],
        first=first[1],
        last_run=last[0],
        last=last[1],
    )


def change_of(earlier: Sequence[HistoryEntry], now: Mark) -> str:
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


def streak_of(earlier: Sequence[HistoryEntry], status: Status, *, this_run: str, now: float) -> Streak | None:
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
