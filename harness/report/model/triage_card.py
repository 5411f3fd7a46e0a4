"""What the catalogue of known failures says of the log of a failed task, as a card of its cell's page."""

from __future__ import annotations

from pathlib import Path

from harness.outcome import Status
from harness.report.model.report_inputs import DiagnosisInput
from harness.verdict.triage.diagnosis import Diagnosis, triage_file
from harness.verdict.verdict import Verdict

MOST_ALSO = 8


def diagnosed(verdict: Verdict, log: Path | None) -> Diagnosis | None:
    """The diagnosis of the log of what failed; None of what did not, and of what left no log."""
    if log is None or verdict.status not in {Status.FAIL, Status.ERROR}:
        return None
    return triage_file(log)


def card_of(found: Diagnosis) -> DiagnosisInput | None:
    """The card: the root cause, or that nobody has described it yet; None when the log shows no failure."""
    root = found.root
    if root is None:
        return None
    known = root.signature
    return DiagnosisInput(
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
