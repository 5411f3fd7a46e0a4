"""A check's past as a strip of runs, oldest left, and since when it is as it is, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise

from markupsafe import Markup

from harness.outcome import Evidence, Status
from harness.report.marks import EVIDENCE, RAN, STYLES, Mark, mark_of
from harness.report.model import Result
from harness.report.text import clip, moment, visible

STEP = 18
BAR = 18
HEIGHT = 24
GLYPH = 12
NOW = {Status.PASS: "passes", Status.FAIL: "fails", Status.INCONCLUSIVE: "is undecided"}
THEN = {Status.PASS: "passed", Status.FAIL: "failed", Status.INCONCLUSIVE: "was undecided"}


@dataclass(frozen=True, kw_only=True)
class _Stretch:
    """Runs in a row that said the same on the same evidence."""

    mark: Mark
    evidence: Evidence | None
    first: str
    last: str
    runs: int


def timeline_svg(result: Result) -> Markup:
    """One bar per stretch of equal verdicts, a tick below where an input changed; "" without a past."""
    facts = result.facts
    if not facts.history:
        return Markup()
    keys = [*(past.key for past in facts.history), facts.key]
    changed = tuple(place for place, (old, new) in enumerate(pairwise(keys), 1) if old and new and old != new)
    said = tuple((mark_of(past.status), past.evidence, past.time) for past in facts.history)
    return _drawn((*said, (result.mark, facts.evidence, None)), changed)


@lru_cache(maxsize=8192)
def _drawn(said: tuple[tuple[Mark, Evidence | None, float | None], ...], changed: tuple[int, ...]) -> Markup:
    """Checks that ran in the same runs and said the same look the same: most of a large report."""
    parts, left = [], 0
    stretches = _stretches(said)
    for stretch in stretches:
        parts.append(_bar(stretch, left))
        left += stretch.runs * STEP
    parts += [
        Markup('<path class="tick" d="M{} {}v5"><title>an input changed</title></path>').format(
            place * STEP - 1, BAR + 1
        )
        for place in changed
    ]
    return Markup(
        '<svg class="timeline" width="{}" height="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(left, HEIGHT, left, HEIGHT, _aloud(stretches, len(changed)), Markup().join(parts))


def _stretches(said: tuple[tuple[Mark, Evidence | None, float | None], ...]) -> list[_Stretch]:
    shown = [(mark, proof if mark in RAN else None, when) for mark, proof, when in said]
    found = []
    for (mark, proof), group in groupby(shown, key=lambda entry: entry[:2]):
        times = ["this run" if when is None else moment(when) for _, _, when in group]
        found.append(_Stretch(mark=mark, evidence=proof, first=times[0], last=times[-1], runs=len(times)))
    return found


def _bar(stretch: _Stretch, left: int) -> Markup:
    kind = stretch.mark.value
    frame = stretch.evidence.value if stretch.evidence else "none"
    width = stretch.runs * STEP - 2
    return Markup(
        '<g class="m-{} e-{}"><title>{}</title><rect x="{}.5" y=".5" width="{}" height="{}" rx="4"/>'
        '<use href="#g-{}" x="{}" y="3" width="{}" height="{}"/></g>'
    ).format(kind, frame, _say(stretch), left, width - 1, BAR - 1, kind, left + 2, GLYPH, GLYPH)


def _say(stretch: _Stretch) -> str:
    # A past failure may have been known then; the list of expectations of that day is not kept.
    label = "failure" if stretch.mark is Mark.FAIL else STYLES[stretch.mark].label
    proof = f" ({EVIDENCE[stretch.evidence].label})" if stretch.evidence else ""
    runs = f", {stretch.runs} runs" if stretch.runs > 1 else ""
    span = stretch.first if stretch.first == stretch.last else f"{stretch.first} to {stretch.last}"
    return f"{label}{proof}{runs}: {span}"


def _aloud(stretches: Sequence[_Stretch], changed: int) -> str:
    inputs = (
        f"; inputs changed {changed} times" if changed > 1 else "; inputs changed once" if changed else ""
    )
    return f"Earlier runs, oldest first. {'; '.join(map(_say, stretches))}{inputs}"


def since_words(result: Result) -> str:
    """`It fails since run X (date), 3 runs in a row; it passed in run Y (date).`; "" of what has no past."""
    streak, status = result.streak, result.facts.status
    if streak is None:
        return ""
    before = (
        f"; it {THEN[streak.before]} in run {_run(streak.until_run, streak.until)}" if streak.before else ""
    )
    if not streak.runs:
        return f"This is the first run in which it {NOW[status]}{before}."
    since = f"since run {_run(streak.since_run, streak.since)}, {streak.runs + 1} runs in a row"
    return f"It {NOW[status]} {since}{before}."


def _run(run_id: str, when: float) -> str:
    name = visible(clip(run_id, 60)) if run_id else "unknown"
    return f"{name} ({moment(when)})"
