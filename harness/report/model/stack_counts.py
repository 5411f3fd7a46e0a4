"""How many checks of each stack have which verdict, on which evidence."""

from __future__ import annotations

from collections import Counter

from harness.outcome import Evidence
from harness.report.model.marks import RAN, Mark
from harness.report.model.report_model import ReportModel


def marks_by_stack(model: ReportModel, most: int) -> dict[str, Counter[tuple[Mark, Evidence | None]]]:
    """The counts of the first `most` stacks; the evidence is None for a check that did not run."""
    counts: dict[str, Counter[tuple[Mark, Evidence | None]]] = {}
    for row in model.rows:
        stack = row.cell.stack
        if stack and (stack in counts or len(counts) < most):
            found = counts.setdefault(stack, Counter())
            for (_tier, mark, evidence), count in row.kinds.items():
                found[mark, evidence if mark in RAN else None] += count
    return counts
