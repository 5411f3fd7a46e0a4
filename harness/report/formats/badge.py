"""SVG badges of the report, of kinds of evidence, and of stacks.

Passes on hardware are solid; simulated, CPU and static passes have a dashed frame.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice

from markupsafe import escape

from harness.outcome import Evidence
from harness.report.model.marks import EVIDENCE, RAN, Mark
from harness.report.model.report_model import ReportModel
from harness.report.model.visible_text import clip, file_name, visible

HEIGHT = 20
LETTER = 6.6
PAD = 8
# Solid green is only for passes on hardware; other passes have a light background and a dashed frame.
GREEN, RED, AMBER, GREY, LABEL = "#14713f", "#c22a1d", "#8f5300", "#5f6772", "#30363d"
#: How many stacks have badges of their own.
MOST_STACKS = 200
HOLLOW = "#eef1f4"


@dataclass(frozen=True, kw_only=True)
class Badge:
    """Left text, right text, colour; `solid` only for results on hardware."""

    label: str
    text: str
    colour: str
    solid: bool


def badges(model: ReportModel) -> dict[str, Badge]:
    """A badge for each kind of evidence, one for the whole report, and those of stacks, by file name."""
    found = {"status": _overall(model)}
    for evidence in EVIDENCE:
        found[evidence.value] = evidence_badge(model, evidence)
    return {**found, **_stack_badges(model)}


def _stack_badges(model: ReportModel) -> dict[str, Badge]:
    """A badge for each stack and kind of evidence with which one of its checks ran."""
    found = {}
    for stack, counts in islice(model.by_stack.items(), MOST_STACKS):
        waiting = sum(count for (mark, _evidence), count in counts.items() if mark not in RAN)
        rest = f", {waiting} not run" if waiting else ""
        for evidence, style in EVIDENCE.items():
            marks = Counter({mark: count for (mark, kind), count in counts.items() if kind is evidence})
            if marks:
                label = f"{clip(stack, 40)} {style.label}"
                found[f"stacks/{file_name(stack)}-{evidence.value}"] = _counted(
                    model, evidence, marks, label, rest
                )
    return found


def evidence_badge(model: ReportModel, evidence: Evidence) -> Badge:
    """A badge such as `simulated: 4/4`: passes among all checks that ran with this kind of evidence."""
    return _counted(model, evidence, Counter(model.by_evidence[evidence]), EVIDENCE[evidence].label)


def _counted(
    model: ReportModel, evidence: Evidence, marks: Counter[Mark], label: str, rest: str = ""
) -> Badge:
    ran = marks.total()
    if not ran:
        return Badge(label=label, text="not run", colour=GREY, solid=False)
    colour = GREEN
    if marks[Mark.FAIL] or marks[Mark.UNEXPECTED_PASS]:
        colour = RED
    elif marks[Mark.PASS] < ran or model.inputs.run.selection or rest:
        colour = AMBER
    known = f", {marks[Mark.KNOWN_FAIL]} known" if marks[Mark.KNOWN_FAIL] else ""
    text = f"{marks[Mark.PASS]}/{ran}{known}{rest}{_part(model)}"
    return Badge(label=label, text=text, colour=colour, solid=evidence is Evidence.HARDWARE)


def _part(model: ReportModel) -> str:
    return ", part of the profile" if model.inputs.run.selection else ""


def _overall(model: ReportModel) -> Badge:
    unexpected = model.counts[Mark.FAIL] + model.counts[Mark.UNEXPECTED_PASS]
    if unexpected:
        return Badge(label="npu-matrix", text=f"{unexpected} unexpected", colour=RED, solid=True)
    if not model.complete or not model.planned:
        return Badge(label="npu-matrix", text="incomplete", colour=AMBER, solid=False)
    passed = {kind: count for kind, count in model.passed.items() if count}
    if not passed:
        return Badge(label="npu-matrix", text="nothing ran", colour=GREY, solid=False)
    kinds = ", ".join(f"{passed[kind]} {style.label}" for kind, style in EVIDENCE.items() if kind in passed)
    idle = sum(one.results for one in model.unanswered)
    part = _part(model)
    rest = (f", {idle} without a verdict" if idle else "") + part
    # Static checks need no device; a pass on the CPU or a simulated device is not one on hardware.
    solid = set(passed) <= {Evidence.HARDWARE, Evidence.STATIC} and Evidence.HARDWARE in passed
    colour = AMBER if idle or part else GREEN
    return Badge(label="npu-matrix", text=f"as expected: {kinds}{rest}", colour=colour, solid=solid)


def badge_svg(badge: Badge) -> str:
    """The badge as a complete SVG file."""
    label, text = (visible(clip(part, 60)) for part in (badge.label, badge.text))
    left, right = (round(len(part) * LETTER + 2 * PAD) for part in (label, text))
    width = left + right
    ground = badge.colour if badge.solid else HOLLOW
    ink = "#ffffff" if badge.solid else badge.colour
    frame = "" if badge.solid else f' stroke="{badge.colour}" stroke-dasharray="3 2"'
    title = escape(f"{label}: {text}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" role="img" '
        f'aria-label="{title}">'
        f"<title>{title}</title>"
        f'<rect width="{left}" height="{HEIGHT}" rx="3" fill="{LABEL}"/>'
        f'<rect x="{left - 0.5}" y=".5" width="{right}" height="{HEIGHT - 1}" rx="3" fill="{ground}"{frame}/>'
        f'<g font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2}" y="14" fill="#ffffff">{escape(label)}</text>'
        f'<text x="{left + right / 2}" y="14" fill="{ink}">{escape(text)}</text></g></svg>\n'
    )


def badge_files(model: ReportModel) -> dict[str, str]:
    """The badges as SVG files, by the name of the file."""
    return {f"badges/{name}.svg": badge_svg(badge) for name, badge in badges(model).items()}
