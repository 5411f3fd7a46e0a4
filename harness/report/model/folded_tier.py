"""The checks of a tier of one cell as counts by verdict and evidence, which are never added up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from harness.outcome import Evidence
from harness.report.model.marks import EVIDENCE, SEVERITY, Mark
from harness.report.model.report_model import ReportRow, TierColumns

_STRENGTH = {kind: rank for rank, kind in enumerate(EVIDENCE)}


@dataclass(frozen=True, kw_only=True)
class FoldedTier:
    """groups: (verdict, evidence, number of checks), most urgent first; empty if nothing was planned.

    check: the most urgent one, "" without any. changed: whether a verdict changed since the run before.
    """

    groups: tuple[tuple[Mark, Evidence | None, int], ...]
    check: str
    changed: bool


def fold(row: ReportRow, tier: TierColumns) -> FoldedTier:
    """The checks of a tier of a row."""
    results = [row.results[check.name] for check in tier.checks if check.name in row.results]
    counts = Counter((result.mark, result.shown_evidence) for result in results)
    ordered = sorted(counts, key=lambda kind: (SEVERITY[kind[0]], _STRENGTH[kind[1]] if kind[1] else -1))
    first = min(results, key=lambda result: SEVERITY[result.mark], default=None)
    return FoldedTier(
        groups=tuple((mark, evidence, counts[mark, evidence]) for mark, evidence in ordered),
        check=first.check if first else "",
        changed=any(result.change for result in results),
    )
