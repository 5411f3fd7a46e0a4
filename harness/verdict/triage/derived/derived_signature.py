"""A derived cause in the form of a signature, so that it is ranked, grouped and shown as one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.verdict.triage.catalogue import Signature
from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.derived_cause import CauseFinder
from harness.verdict.triage.derived.failed_use import FailedUse
from harness.verdict.triage.stack_trace import Frame

#: The area of derived causes.
AREA = "derived"
#: Signatures of these areas are about packages that do not go together, which a proven cause tells better.
ABOUT_PACKAGES = frozenset({"skew", "libraries"})
ID_LENGTH = 60


def derive(
    finder: CauseFinder, text: str, frames: Sequence[Frame], known: Signature | None
) -> tuple[Signature, DerivedCause] | None:
    """The cause of a failure with this message; None if none is derived, or if `known` tells more."""
    use = finder.use(text, tuple(frames))
    if use is None or (known and known.role == "cause" and known.area not in ABOUT_PACKAGES):
        return None
    cause = finder.cause(use)
    if cause is None or (known and not _is_better(cause, known)):
        return None
    return _signature(use, cause, text), cause


def _is_better(cause: DerivedCause, known: Signature) -> bool:
    if cause.degree is Degree.PROVEN:
        return True
    return cause.degree is Degree.LIKELY and known.role == "symptom"


def _signature(use: FailedUse, cause: DerivedCause, text: str) -> Signature:
    words = (use.expected.value, *use.owner.split(".")[-2:], *use.names)
    name = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")[:ID_LENGTH].rstrip("-")
    return Signature(
        id=name,
        area=AREA,
        role="symptom" if cause.degree is Degree.SYMPTOM else "cause",
        evidence="source",
        pattern=r"(?!)",
        needles=(text or name,),
        example=text or name,
        cause=cause.sentence,
        remedy=cause.remedy,
        affects=" with ".join(cause.packages),
        sources=cause.proof or ("message of the error",),
    )
