"""Compares a verdict with earlier runs: what changed, and since which run it is the same."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from operator import itemgetter

from harness.outcome import ANSWERED, UNANSWERED, Evidence, Status
from harness.report.model.marks import Mark, mark_of
from harness.verdict.verdict import Standing

NOT_RUN = frozenset(Mark(status.value) for status in UNANSWERED)
RAN_BEFORE = ANSWERED - {Status.UNSUPPORTED}
BROKEN, FIXED, LOST = "broken", "fixed", "lost"
MAY_BE_EXPECTED = frozenset({Status.FAIL, Status.INCONCLUSIVE, Status.ERROR})


class Foreseen(str, enum.Enum):
    """Whether a failure of an earlier run was expected at that time, and whether it is expected today."""

    NO = ""
    THEN_AND_NOW = "expected then and now"
    THEN = "expected then, not now"
    NOW = "not expected then, expected now"
    NOW_ONLY_KNOWN = "expected now; whether it was expected then is not recorded"


@dataclass(frozen=True, kw_only=True)
class EarlierVerdict:
    """The verdict of a run on one check of one cell, in short; its key differs where an input changed.

    standing: by the expectations of that run; None if it did not store them.
    """

    status: Status
    reason: str = ""
    evidence: Evidence | None = None
    key: str = ""
    standing: Standing | None = None

    @property
    def mark(self) -> Mark:
        """How the run showed the verdict."""
        return mark_of(self.status, self.standing or Standing.AS_EXPECTED)


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """The verdict of an earlier run on one check of one cell; `time` is Unix seconds.

    reused: the run used an older outcome. figures: the numbers of this check that are followed over runs
    (`trend.figures_of`). expected_now: whether an expectation of today covers the failure. machine: where the
    outcome was measured, "" if that is not recorded. measured: when, Unix seconds, 0 without an outcome.
    """

    time: float
    run_id: str = ""
    verdict: EarlierVerdict
    reused: bool = False
    figures: tuple[tuple[str, float], ...] = ()
    expected_now: bool = False
    machine: str = ""
    measured: float = 0.0

    @property
    def foreseen(self) -> Foreseen:
        """Whether the failure was expected then, and whether it is expected now."""
        return self.shown[1]

    @property
    def mark(self) -> Mark:
        """How the verdict is shown: as it was judged then, or by today's expectations if nothing says how."""
        return self.shown[0]

    @property
    def shown(self) -> tuple[Mark, Foreseen]:
        """`mark` and `foreseen`."""
        verdict = self.verdict
        standing = verdict.standing
        return _SHOWN[verdict.status._value_, standing._value_ if standing else "", self.expected_now]


def _shown(status: Status, standing: Standing | None, *, expected_now: bool) -> tuple[Mark, Foreseen]:
    if status not in MAY_BE_EXPECTED:
        foreseen = Foreseen.NO
    elif standing is None:
        foreseen = Foreseen.NOW_ONLY_KNOWN if expected_now else Foreseen.NO
    elif standing is Standing.KNOWN:
        foreseen = Foreseen.THEN_AND_NOW if expected_now else Foreseen.THEN
    else:
        foreseen = Foreseen.NOW if expected_now else Foreseen.NO
    judged = Standing.KNOWN if foreseen is Foreseen.NOW_ONLY_KNOWN else standing or Standing.AS_EXPECTED
    return mark_of(status, judged), foreseen


#: By status, standing and whether the failure is expected now: a large report looks up millions of them.
_SHOWN = {
    (status._value_, standing._value_ if standing else "", expected_now): _shown(
        status, standing, expected_now=expected_now
    )
    for status in Status
    for standing in (None, *Standing)
    for expected_now in (False, True)
}


@dataclass(frozen=True, kw_only=True)
class Streak:
    """How many earlier runs in a row have the same verdict, since which run, and the verdict before that.

    runs: 0 if this run is the first with this verdict. since, until: Unix seconds. before: None if the
    history has no other verdict.
    """

    runs: int
    since_run: str
    since: float
    before: Status | None = None
    until_run: str = ""
    until: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Earlier runs in a row with the same verdict and evidence; `inputs` counts their different keys."""

    status: Status
    mark: Mark
    foreseen: Foreseen
    evidence: Evidence | None
    runs: int
    inputs: int
    first_run: str
    first: float
    last_run: str
    last: float


@dataclass(frozen=True, kw_only=True, eq=False)
class CondensedHistory:
    """A history, oldest first, with equal verdicts in a row combined; equal histories share one object.

    turned: positions in the history where an input differs from the previous run.
    """

    stretches: tuple[Stretch, ...] = ()
    turned: tuple[int, ...] = ()


#: Run id, time, status, mark, whether it was expected, evidence, and the index of the key among the keys of
#: this history (-1 without a key).
_StoredVerdict = tuple[str, float, str, str, str, str, int]


def condensed_history(history: Sequence[HistoryEntry]) -> CondensedHistory:
    """The condensed history; cached, because many checks of a large report have the same history."""
    keys: dict[str, int] = {}
    number = keys.setdefault
    return _past(
        tuple(
            [
                (
                    past.run_id,
                    past.time,
                    verdict.status._value_,
                    mark._value_,
                    foreseen._value_,
                    verdict.evidence._value_ if verdict.evidence else "",
                    number(verdict.key, len(keys)) if verdict.key else -1,
                )
                for past in history
                for verdict, (mark, foreseen) in ((past.verdict, past.shown),)
            ]
        )
    )


@lru_cache(maxsize=16_384)
def _past(history: tuple[_StoredVerdict, ...]) -> CondensedHistory:
    return CondensedHistory(
        stretches=tuple(
            _stretch(list(runs)) for _alike, runs in groupby(history, key=itemgetter(2, 3, 4, 5))
        ),
        turned=tuple(
            index
            for index, ((*_, old), (*_, new)) in enumerate(pairwise(history), 1)
            if old != new and old >= 0 and new >= 0
        ),
    )


def _stretch(runs: Sequence[_StoredVerdict]) -> Stretch:
    first, last = runs[0], runs[-1]
    _, _, status, mark, foreseen, evidence, _ = first
    return Stretch(
        status=Status(status),
        mark=Mark(mark),
        foreseen=Foreseen(foreseen),
        evidence=Evidence(evidence) if evidence else None,
        runs=len(runs),
        inputs=len({key for *_, key in runs if key >= 0}),
        first_run=first[0],
        first=first[1],
        last_run=last[0],
        last=last[1],
    )


def change_of(earlier: Sequence[HistoryEntry], now: Mark) -> str:
    """The change since the last run that had an outcome; runs without an outcome do not count."""
    if not earlier:
        return ""
    if now in NOT_RUN:
        return LOST if earlier[-1].verdict.status in RAN_BEFORE else ""
    before = next(
        (past.verdict.status for past in reversed(earlier) if past.verdict.status in RAN_BEFORE), None
    )
    if before is Status.PASS and now in {Mark.FAIL, Mark.KNOWN_FAIL, Mark.INCONCLUSIVE}:
        return BROKEN
    if before in {Status.FAIL, Status.INCONCLUSIVE} and now in {Mark.PASS, Mark.UNEXPECTED_PASS}:
        return FIXED
    return ""


class History(tuple[HistoryEntry, ...]):
    """The verdicts of earlier runs on one check of one cell, oldest first.

    Many checks of a large report have the same history. They share one object, and with it all that is
    computed here.
    """

    @cached_property
    def condensed(self) -> CondensedHistory:
        """The history with equal verdicts in a row combined."""
        return condensed_history(self)

    @cached_property
    def _streaks(self) -> dict[tuple[Status, str, float], Streak | None]:
        return {}

    def streak(self, status: Status, *, this_run: str, now: float) -> Streak | None:
        """`streak_of` this history."""
        asked = (status, this_run, now)
        if asked not in self._streaks:
            self._streaks[asked] = streak_of(self, status, this_run=this_run, now=now)
        return self._streaks[asked]


def streak_of(earlier: Sequence[HistoryEntry], status: Status, *, this_run: str, now: float) -> Streak | None:
    """The streak of a verdict; None if this run or all earlier runs have no outcome."""
    if status not in RAN_BEFORE:
        return None
    alike, first, before = 0, None, None
    for past in reversed(earlier):
        if past.verdict.status is status:
            alike, first = alike + 1, past
        elif past.verdict.status in RAN_BEFORE:
            before = past
            break
    if first is None and before is None:
        return None
    return Streak(
        runs=alike,
        since_run=first.run_id if first else this_run,
        since=first.time if first else now,
        before=before.verdict.status if before else None,
        until_run=before.run_id if before else "",
        until=before.time if before else 0.0,
    )
