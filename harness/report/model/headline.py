"""The first sentences of a report: what needs attention, and how much passed on what evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.outcome import Evidence
from harness.report.model.marks import EVIDENCE, NEEDS_ATTENTION, RAN, STYLES, Mark
from harness.report.model.streak import NOT_RUN
from harness.report.model.unanswered import WITHOUT_VERDICT
from harness.report.model.visible_text import counted


def headline(
    counts: Mapping[Mark, int], missing: Sequence[tuple[str, str]], known: int, selection: str = ""
) -> str:
    """The verdicts that need attention, by kind, and whether all planned checks have a verdict.

    known: how many of them are expected failures. selection: options that selected a part of the profile.
    """
    bad = [f"{counts[mark]} {_plural(mark, counts[mark])}" for mark in NEEDS_ATTENTION if counts[mark]]
    if missing:
        bad.append(f"{len(missing)} planned without an outcome")
    if not sum(counts.values()):
        return "Nothing was planned, so nothing was proved."
    if not any(counts[mark] for mark in RAN) and not bad:
        return "Nothing was run, so nothing was proved."
    tail = f", {known} of them expected" if known else ""
    idle = sum(counts[mark] for mark in WITHOUT_VERDICT)
    rest = f" {idle} of {sum(counts.values())} planned checks have no verdict." if idle else ""
    if selection:
        rest += f" This is a part of the profile ({selection}), so nothing is known about the rest."
    return (f"{', '.join(bad)}{tail}." if bad else "Nothing unexpected.") + rest


def proof(counts: Mapping[Mark, int], passed: Mapping[Evidence, int]) -> str:
    """How many checks passed, on what evidence, and how many did not run."""
    ran = sum(counts[mark] for mark in RAN)
    idle = sum(counts[mark] for mark in NOT_RUN)
    if not ran:
        return f"{idle} did not run." if idle else ""
    shares = [f"{passed[kind]} {style.label}" for kind, style in EVIDENCE.items() if passed[kind]]
    text = f"{counts[Mark.PASS]} of {ran} checks that ran passed"
    text += f" ({', '.join(shares)})" if shares else ""
    text += "." if passed[Evidence.HARDWARE] else "; none on hardware."
    return (
        text
        + (f" {counted(counts[Mark.KNOWN_FAIL], 'known failure')}." if counts[Mark.KNOWN_FAIL] else "")
        + (f" {idle} did not run." if idle else "")
    )


def _plural(mark: Mark, count: int) -> str:
    label = STYLES[mark].label
    endings = {"failure": "failures", "pass": "passes", "error": "errors"}
    last = label.rsplit(" ", 1)[-1]
    return label if count == 1 or last not in endings else label[: -len(last)] + endings[last]
