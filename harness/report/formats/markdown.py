"""The report as Markdown: a summary for the page of a CI job, and a table for a README."""

from __future__ import annotations

from harness.devices.sim.refusals.permissive_calls import PERMISSIVE, permissive_reasons
from harness.outcome import UNLISTED, unlisted_reasons
from harness.report.model.markdown_text import escape, prose
from harness.report.model.marks import EVIDENCE, STYLES, Mark
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.unanswered import Unanswered
from harness.report.model.visible_text import clip, moment

MAX_ROWS = 200
MAX_ATTENTION = 20
MAX_REASONS = 8
NOTHING = "·"


def summary(model: ReportModel) -> str:
    """The summary of a CI job: the headline, what needs attention, and the grid."""
    lines = [f"### {escape(model.headline)}", "", escape(model.proof), ""]
    run = model.inputs.run
    facts = [
        ("profile", run.profile),
        ("selection", run.selection),
        ("revision", run.revision),
        ("run", run.run_id),
    ]
    details = " · ".join(f"{name} {escape(value)}" for name, value in facts if value)
    lines += [f"{moment(model.inputs.generated)}{' · ' + details if details else ''}", ""]
    if model.attention:
        lines += ["| what | check | cell | reason | do |", "|---|---|---|---|---|"]
        for item in model.attention[:MAX_ATTENTION]:
            row = model.row(item.cells[0])
            title = model.names[row.cell.id] if row else item.cells[0]
            more = f" and {len(item.cells) - 1} more" if len(item.cells) > 1 else ""
            tag = f" ({EVIDENCE[item.evidence].tag})" if item.evidence else ""
            style = STYLES[item.mark]
            cells = [
                style.glyph + " " + style.label,
                item.check + tag,
                title + more,
                item.reason,
                item.remedy,
            ]
            lines.append(_line(cells))
        if len(model.attention) > MAX_ATTENTION:
            lines.append(f"\n{len(model.attention) - MAX_ATTENTION} more in the report.")
        lines.append("")
    if model.unanswered:
        lines += ["Without a verdict:", ""]
        for reason in model.unanswered[:MAX_REASONS]:
            lines.append(f"- {unanswered_line(reason)}")
        lines.append("")
    lines += [*_unlisted(model), *_permissive(model)]
    lines += [table(model), "", legend()]
    if model.patterns:
        lines += ["", *(f"- {escape(str(pattern))}" for pattern in model.patterns[:8])]
    return "\n".join(lines) + "\n"


def unanswered_line(one: Unanswered, limit: int = 400) -> str:
    """Why checks have no verdict, and how to get one. limit: characters of each of the two."""
    why = escape(clip(str(one), limit)).rstrip(".")
    return f"{why}. {prose(one.remedy, limit)}" if one.remedy else f"{why}."


def _unlisted(model: ReportModel) -> list[str]:
    """The passed cells with versions that a published table does not list."""
    found = [
        f"- {escape(row.cell.name)}: {escape(reason.removeprefix(UNLISTED))}"
        for row in model.rows
        for result in row.passed_with_reasons
        for reason in unlisted_reasons(result.verdict.reasons)
    ]
    if not found:
        return []
    more = [f"- {len(found) - MAX_ATTENTION} more in the report."] if len(found) > MAX_ATTENTION else []
    return [
        "Passed with versions that a published table does not list:",
        "",
        *found[:MAX_ATTENTION],
        *more,
        "",
    ]


def _permissive(model: ReportModel) -> list[str]:
    """The passed checks with calls for which it is unknown whether torch_npu refuses them, by reason."""
    passed: dict[str, list[str]] = {}
    for row in model.rows:
        for result in row.passed_with_reasons:
            for reason in permissive_reasons(result.verdict.reasons):
                where = f"{row.cell.name} {result.check}"
                passed.setdefault(reason.removeprefix(PERMISSIVE), []).append(where)
    found = [
        f"- {len(where)} passed ({escape(where[0])}): {escape(reason)}" for reason, where in passed.items()
    ]
    if not found:
        return []
    more = [f"- {len(found) - MAX_ATTENTION} more in the report."] if len(found) > MAX_ATTENTION else []
    return ["Passed, though an NPU may refuse the calls:", "", *found[:MAX_ATTENTION], *more, ""]


def table(model: ReportModel, *, max_rows: int = MAX_ROWS) -> str:
    """Cells and checks as a Markdown table; every verdict names its evidence."""
    names = [check.name for check in model.checks]
    head = ["cell", *model.axes, *names]
    lines = [_line(head), "|" + "---|" * len(head)]
    lines += [_row(row, model.axes, names) for row in model.rows[:max_rows]]
    text = "\n".join(lines)
    more = len(model.rows) - max_rows
    return text + (f"\n\n{more} more cells in the report." if more > 0 else "")


def _row(row: ReportRow, axes: tuple[str, ...], names: list[str]) -> str:
    cells = [row.cell.name, *(row.cell.axes.get(axis, "—") for axis in axes)]
    return _line([*cells, *(_verdict(row.results.get(name)) for name in names)])


def _verdict(result: ReportResult | None) -> str:
    if result is None:
        return NOTHING
    style = STYLES[result.mark]
    evidence = result.shown_evidence
    return f"{style.glyph} {style.word}" + (f" ({EVIDENCE[evidence].tag})" if evidence else "")


def legend() -> str:
    """The meaning of the marks, in two lines."""
    marks = " · ".join(
        f"{style.glyph} {style.label}" for mark, style in STYLES.items() if mark is not Mark.PASS
    )
    kinds = " · ".join(f"({style.tag}) {style.meaning}" for style in EVIDENCE.values())
    return f"<sub>{STYLES[Mark.PASS].glyph} pass · {marks}<br>{kinds}</sub>"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"
