"""Why planned checks have no verdict, and how to get one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

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


def find_unanswered(results: Sequence[ReportResult]) -> tuple[Unanswered, ...]:
    """The checks without a verdict by remedy, or by reason without a remedy; the most frequent first."""
    groups: dict[str, list[ReportResult]] = defaultdict(list)
    for result in results:
        if result.mark in WITHOUT_VERDICT:
            groups[result.remedy or result.reason].append(result)
    found = [_unanswered(group) for group in groups.values()]
    return tuple(sorted(found, key=lambda one: (-one.results, one.reason)))


def _unanswered(group: Sequence[ReportResult]) -> Unanswered:
    reasons = [result.reason or "no reason is recorded" for result in group]
    return Unanswered(
        results=len(group),
        reason=max(dict.fromkeys(reasons), key=reasons.count),
        others=len(set(reasons)) - 1,
        remedy=group[0].remedy,
        checks=tuple(dict.fromkeys(result.check for result in group)),
    )
