"""Why planned checks have no verdict, and how to get one."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from harness.report.model.marks import Mark
from harness.report.model.report_inputs import ReportResult
from harness.report.model.streak import NOT_RUN
from harness.report.model.visible_text import counted

#: Errors are shown among what needs attention.
WITHOUT_VERDICT = NOT_RUN - {Mark.ERROR}


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """Checks without a verdict for one reason, or with one remedy for similar reasons.

    results: how many results of cells. reason: the most frequent one. others: how many other reasons there
    are. remedy: how to get their verdicts, or "". checks: the names of the checks.
    """

    results: int
    reason: str
    others: int
    remedy: str
    checks: tuple[str, ...]

    def __str__(self) -> str:
        more = f" (and {counted(self.others, 'similar reason')})" if self.others else ""
        return f"{self.results}: {self.reason}{more}"


class OpenCheck(NamedTuple):
    """A check without a verdict: its name, why, and how to get a verdict."""

    check: str
    reason: str
    remedy: str


def open_checks(results: Iterable[ReportResult]) -> tuple[OpenCheck, ...]:
    """The checks without a verdict among these results."""
    return tuple(
        OpenCheck(result.check, result.reason, result.remedy)
        for result in results
        if result.mark in WITHOUT_VERDICT
    )


def find_unanswered(found: Iterable[OpenCheck]) -> tuple[Unanswered, ...]:
    """The checks without a verdict by remedy, or by reason without a remedy; the most frequent first."""
    groups: dict[str, Counter[OpenCheck]] = defaultdict(Counter)
    # A large matrix has the same few checks, reasons and remedies many thousand times.
    for one, count in Counter(found).items():
        groups[one.remedy or one.reason][one] = count
    return tuple(sorted(map(_unanswered, groups.values()), key=lambda one: (-one.results, one.reason)))


def _unanswered(group: Counter[OpenCheck]) -> Unanswered:
    reasons: Counter[str] = Counter()
    for one, count in group.items():
        reasons[one.reason or "no reason is recorded"] += count
    return Unanswered(
        results=group.total(),
        reason=max(reasons, key=reasons.__getitem__),
        others=len(reasons) - 1,
        remedy=next(iter(group)).remedy,
        checks=tuple(dict.fromkeys(one.check for one in group)),
    )
