"""The history of a check as a strip of runs, oldest on the left, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from markupsafe import Markup, escape

from harness.outcome import Evidence, Status
from harness.report.model.marks import EVIDENCE, RAN, STYLES, Mark
from harness.report.model.report_inputs import ReportResult
from harness.report.model.streak import CondensedHistory, Foreseen, Streak, Stretch
from harness.report.model.visible_text import clip, moment, visible

STEP = 18
BAR = 18
HEIGHT = 24
GLYPH = 12
NOW_RUN = "this run"
NOW = {Status.PASS: "passes", Status.FAIL: "fails", Status.INCONCLUSIVE: "is undecided"}
THEN = {Status.PASS: "passed", Status.FAIL: "failed", Status.INCONCLUSIVE: "was undecided"}


def timeline_svg(result: ReportResult) -> Markup:
    """One bar per stretch of equal verdicts, and a tick where an input changed; "" without a history."""
    if not result.history:
        return Markup()
    now = len(result.history) if input_changed(result) else None
    return _drawn(result.past, result.mark, result.verdict.evidence, now)


def input_changed(result: ReportResult) -> bool:
    """Whether an input differs from that of the last earlier run; both keys are known then."""
    before, now = result.history[-1].verdict.key if result.history else "", result.entry.key
    return bool(before and now and before != now)


@lru_cache(maxsize=16_384)
def _drawn(past: CondensedHistory, mark: Mark, evidence: Evidence | None, now: int | None) -> Markup:
    """The strip as SVG. now: the index of the current run if one of its inputs changed, otherwise None."""
    # Formatting strings is several times faster than formatting Markup; only words need escapes.
    parts, left = [], 0
    bars = _bars(past.stretches, mark, evidence)
    changed = past.turned if now is None else (*past.turned, now)
    for bar in bars:
        parts.append(_drawn_bar(bar, left))
        left += bar.runs * STEP
    parts += [
        f'<path class="tick" d="M{index * STEP - 1} {BAR + 1}v5"><title>an input changed</title></path>'
        for index in changed
    ]
    aloud = escape(_aloud(bars, len(changed)))
    return Markup(  # noqa: S704 - words are escaped, all else are numbers and names of this program
        f'<svg class="timeline" width="{left}" height="{HEIGHT}" viewBox="0 0 {left} {HEIGHT}" role="img" '
        f'aria-label="{aloud}">{"".join(parts)}</svg>'
    )


@dataclass(frozen=True, kw_only=True)
class _Bar:
    """Consecutive runs with the same mark and evidence; the last bar contains this run."""

    mark: Mark
    evidence: Evidence | None
    first: str
    last: str
    runs: int
    foreseen: Foreseen = Foreseen.NO


def _bars(before: tuple[Stretch, ...], mark: Mark, evidence: Evidence | None) -> list[_Bar]:
    found = []
    for stretch in before:
        was = stretch.mark
        found.append(
            _Bar(
                mark=was,
                foreseen=stretch.foreseen,
                evidence=stretch.evidence if was in RAN else None,
                first=moment(stretch.first),
                last=moment(stretch.last),
                runs=stretch.runs,
            )
        )
    now = _Bar(mark=mark, evidence=evidence if mark in RAN else None, first=NOW_RUN, last=NOW_RUN, runs=1)
    alike = (Foreseen.NO, Foreseen.THEN_AND_NOW)
    same = (
        found
        and (found[-1].mark, found[-1].evidence) == (now.mark, now.evidence)
        and found[-1].foreseen in alike
    )
    return [*found[:-1], replace(found[-1], last=NOW_RUN, runs=found[-1].runs + 1)] if same else [*found, now]


def _drawn_bar(bar: _Bar, left: int) -> str:
    kind = bar.mark.value
    frame = bar.evidence.value if bar.evidence else "none"
    width = bar.runs * STEP - 2
    return (
        f'<g class="m-{kind} e-{frame}"><title>{escape(_say(bar))}</title>'
        f'<rect x="{left}.5" y=".5" width="{width - 1}" height="{BAR - 1}" rx="4"/>'
        f'<use href="#g-{kind}" x="{left + 2}" y="3" width="{GLYPH}" height="{GLYPH}"/></g>'
    )


def _say(bar: _Bar) -> str:
    label = STYLES[bar.mark].label
    label += f", {bar.foreseen.value}" if bar.foreseen else ""
    proof = f" ({EVIDENCE[bar.evidence].label})" if bar.evidence else ""
    runs = f", {bar.runs} runs" if bar.runs > 1 else ""
    span = bar.first if bar.first == bar.last else f"{bar.first} to {bar.last}"
    return f"{label}{proof}{runs}: {span}"


def _aloud(bars: Sequence[_Bar], changed: int) -> str:
    inputs = (
        f"; inputs changed {changed} times" if changed > 1 else "; inputs changed once" if changed else ""
    )
    return f"Earlier runs, oldest first. {'; '.join(map(_say, bars))}{inputs}"


def since_words(streak: Streak | None, status: Status) -> str:
    """A sentence such as `It fails since run X (date), 3 runs in a row; it passed in run Y (date).`

    "" without a history.
    """
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
