"""The diagnosis of a failed task's log, as a card for the page of its cell."""

from __future__ import annotations

from pathlib import Path

from harness.outcome import Status
from harness.report.model.report_inputs import DiagnosisCard
from harness.verdict.triage.diagnosis import Diagnosis, triage_file
from harness.verdict.verdict import Verdict

MOST_ALSO = 8


def diagnosed(verdict: Verdict, log: Path | None) -> Diagnosis | None:
    """The diagnosis of a failed task's log; None if the task did not fail or has no log."""
    if log is None or verdict.status not in {Status.FAIL, Status.ERROR}:
        return None
    return triage_file(log)


def card_of(found: Diagnosis) -> DiagnosisCard | None:
    """The card: the root cause, with its signature if there is one. None if the log shows no failure."""
    root = found.root
    if root is None:
        return None
    known = root.signature
    return DiagnosisCard(
        id=root.id,
        known=found.known,
        line=root.line,
        excerpt=root.text,
        cause=known.cause if known else "",
        remedy=known.remedy if known else "",
        affects=known.affects if known else "",
        sources=known.sources if known else (),
        also=tuple(dict.fromkeys(other.id for other in found.findings if other is not root))[:MOST_ALSO],
    )
