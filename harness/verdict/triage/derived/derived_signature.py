"""A derived cause in the form of a signature, so that it is ranked, grouped and shown as one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from harness.verdict.triage.catalogue import Signature
from harness.verdict.triage.derived.cause_degree import Degree, DerivedCause
from harness.verdict.triage.derived.derived_cause import CauseFinder
from harness.verdict.triage.derived.failed_use import Expected, FailedUse
from harness.verdict.triage.derived.memory_figures import memory_cause
from harness.verdict.triage.derived.message_causes import is_missing_key, is_missing_module, is_old_library
from harness.verdict.triage.derived.refused_values import refused_value
from harness.verdict.triage.derived.stated_numbers import divided_numbers, numpy_sizes
from harness.verdict.triage.stack_trace import Frame

#: The area of derived causes, of those about settings (refused by a package, or missing), about what is
#: installed, and about the memory of a card.
AREA, SETTINGS, LIBRARIES, RUNTIME = "derived", "config", "libraries", "runtime"
#: The signature of a card whose memory is used up, of which the figures in the message tell more.
OUT_OF_MEMORY = "npu-oom"
#: And that of a package that was built for another numpy.
OTHER_NUMPY = "numpy-c-api"
#: Signatures of these areas are about packages that do not go together, which a proven cause tells better.
ABOUT_PACKAGES = frozenset({"skew", "libraries"})
#: Those of this area say of a text that its packages are of different stacks, without knowing their releases.
SUSPECTED = "skew"
ID_LENGTH = 60


def derive(
    finder: CauseFinder,
    text: str,
    frames: Sequence[Frame],
    known: Signature | None,
    *,
    survived: bool = False,
) -> tuple[Signature, DerivedCause] | None:
    """The cause of a failure with this message; None if none is derived, or if `known` tells more.

    survived: the job went on after it, so nothing is looked up for it.
    """
    stated = _stated(text, known)
    if stated:
        return stated
    use = finder.use(text, tuple(frames))
    if use is None and known is None:
        return None if survived else _raised(finder, text, frames)
    if use is None or (known and not _may_be_replaced(known, use)):
        return None
    cause = finder.cause(use, only_known=survived)
    if cause is None or (known and not _is_better(cause, known, use)):
        return None
    found = _signature(use, cause, text)
    if known and ((is_missing_key(use) and not use.stack) or is_old_library(use)):
        # It is the same finding, only with the name of the key, or of the library and its version.
        found = found.model_copy(update={"id": known.id})
    return found, cause


def _stated(text: str, known: Signature | None) -> tuple[Signature, DerivedCause] | None:
    """What the figures and values in a message prove, if `known` does not tell more."""
    memory = memory_cause(text) if known is None or known.id == OUT_OF_MEMORY else None
    if memory:
        name = known.id if known else OUT_OF_MEMORY.replace("npu", "device")
        return _signature_of(RUNTIME, (name,), memory, text), memory
    sizes = numpy_sizes(text) if known and known.id == OTHER_NUMPY else None
    if sizes:
        return _signature_of(LIBRARIES, (OTHER_NUMPY,), sizes, text), sizes
    refused = refused_value(text) if known is None or known.role == "symptom" else None
    if refused:
        return _signature_of(SETTINGS, ("refused value",), refused, text), refused
    numbers = divided_numbers(text) if known is None or known.role == "symptom" else None
    if numbers:
        return _signature_of(SETTINGS, ("not divisible",), numbers, text), numbers
    return None


def as_symptom(signature: Signature, cause: DerivedCause) -> tuple[Signature, DerivedCause]:
    """A likely cause of something that may not have ended the job, as a symptom."""
    if cause.degree is not Degree.LIKELY and not cause.is_open:
        return signature, cause
    return signature.model_copy(update={"role": "symptom"}), replace(cause, degree=Degree.SYMPTOM)


def _raised(finder: CauseFinder, text: str, frames: Sequence[Frame]) -> tuple[Signature, DerivedCause] | None:
    """What the function that raises an exception tells, if the message says nothing about packages."""
    found = finder.raised(text, tuple(frames))
    if found is None:
        return None
    function, cause = found
    return _signature_of(SETTINGS, ("raised", *cause.packages, function), cause, text), cause


def _may_be_replaced(known: Signature, use: FailedUse) -> bool:
    """Whether what is derived may tell more: of a missing key, the traceback names who reads it.

    Of metadata that is missing, the message has told everything.
    """
    if use.expected is Expected.METADATA:
        return False
    return known.role != "cause" or known.area in ABOUT_PACKAGES or is_missing_key(use)


def _is_better(cause: DerivedCause, known: Signature, use: FailedUse) -> bool:
    """What the releases show is better than a suspicion about versions, unless a folder hides the package."""
    if cause.degree is Degree.PROVEN and not cause.is_open:
        return True
    is_suspicion = known.role == "symptom" or (known.area == SUSPECTED and not use.is_shadowed)
    return cause.degree is not Degree.SYMPTOM and is_suspicion


def _signature(use: FailedUse, cause: DerivedCause, text: str) -> Signature:
    area = SETTINGS if is_missing_key(use) or use.expected is Expected.CONFIG_NODE else AREA
    is_installed = use.expected is Expected.METADATA or is_missing_module(use) or is_old_library(use)
    area = LIBRARIES if is_installed else area
    return _signature_of(area, (use.expected.value, *use.owner.split(".")[-2:], *use.names), cause, text)


def _signature_of(area: str, words: Sequence[str], cause: DerivedCause, text: str) -> Signature:
    name = re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")[:ID_LENGTH].rstrip("-")
    return Signature(
        id=name,
        area=area,
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
