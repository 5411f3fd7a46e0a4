"""The grid for a terminal, with colours, and for logs, as plain columns."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from harness.report.model.marks import EVIDENCE, STYLES, Mark
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.visible_text import clip, counted, visible
from harness.report.query.grid_query import GridSelection

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

NARROW = 120
TITLE = 36
NOTHING = "·"


def plain_grid(model: ReportModel, selection: GridSelection | None = None) -> str:
    """The grid and what needs attention as plain text, for log files and screen readers.

    With a selection only its rows are shown; checks that do not match the query are in brackets.
    """
    names = [check.name for check in model.checks]
    head = ["cell", *(visible(clip(name, 40)) for name in names)]
    rows = [head] + [
        [
            visible(clip(row.cell.id, 60)),
            *(_aside(_words(row.results.get(name), plain=True), lit=name in hits) for name in names),
        ]
        for row, hits in _rows(model, selection)
    ]
    widths = [max(len(row[index]) for row in rows) for index in range(len(head))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    summary = [visible(model.headline), model.proof]
    selected = _selected(model, selection)
    if selected:
        return "\n".join([*lines, "", selected, *summary]) + "\n"
    return "\n".join([*lines, "", *_attention(model), *summary]) + "\n"


def _rows(model: ReportModel, selection: GridSelection | None) -> list[tuple[ReportRow, frozenset[str]]]:
    if selection is None:
        return [(row, frozenset(row.results)) for row in model.rows]
    return list(selection.rows)


def _selected(model: ReportModel, selection: GridSelection | None) -> str:
    """How much is selected, or "" if everything is."""
    if selection is None or (len(selection.rows), selection.checks) == (len(model.rows), model.planned):
        return ""
    if not selection.rows:
        return "No cell matches."
    return f"{len(selection.rows)} of {len(model.rows)} cells, {selection.checks} checks"


def _aside(text: str, *, lit: bool) -> str:
    return text if lit or text == "-" else f"({text})"


def _words(result: ReportResult | None, *, plain: bool) -> str:
    if result is None:
        return NOTHING if not plain else "-"
    style = STYLES[result.mark]
    evidence = result.shown_evidence
    tag = f" {EVIDENCE[evidence].tag}" if evidence else ""
    return f"{style.plain}{tag}" if plain else f"{style.glyph} {style.word}{tag}"


def _attention(model: ReportModel) -> list[str]:
    lines = []
    for item in model.attention[:10]:
        where = item.cells[0] + (f" and {len(item.cells) - 1} more" if len(item.cells) > 1 else "")
        lines.append(visible(clip(f"{STYLES[item.mark].plain} {item.check} of {where}: {item.reason}", 400)))
        if item.remedy:
            lines.append(visible(clip(f"  do: {item.remedy}", 400)))
    if len(model.attention) > 10:
        lines.append(f"{len(model.attention) - 10} more in the report")
    for reason in model.unanswered[:5]:
        lines.append(visible(clip(f"no verdict for {reason}", 400)))
        if reason.remedy:
            lines.append(visible(clip(f"  do: {reason.remedy}", 400)))
    if len(model.unanswered) > 5:
        more = counted(len(model.unanswered) - 5, "more reason")
        lines.append(f"{more} for missing verdicts in the report")
    return [*lines, ""] if lines else []


def rich_grid(
    model: ReportModel, width: int | None = None, selection: GridSelection | None = None
) -> RenderableType:
    """The grid for a terminal of `width` columns; a narrow one shows neither versions nor words.

    With a selection only its rows are shown; checks that do not match the query are dim.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    wide = (width or shutil.get_terminal_size().columns) >= NARROW
    grid = Table(box=None, pad_edge=False, header_style="bold", row_styles=["", "on grey7"], expand=False)
    grid.add_column("cell", max_width=TITLE, no_wrap=True)
    for axis in model.axes if wide else ():
        grid.add_column(visible(clip(axis, 20)), style="dim", no_wrap=True, max_width=16)
    for check in model.checks:
        grid.add_column(visible(clip(check.name, 20)), no_wrap=True)
    for row, hits in _rows(model, selection):
        versions = [Text(visible(clip(row.cell.axes.get(axis, "—"), 40))) for axis in model.axes]
        grid.add_row(
            Text(visible(clip(row.cell.name, 80))),
            *(versions if wide else []),
            *(
                _rich_mark(row.results.get(check.name), wide=wide, lit=check.name in hits)
                for check in model.checks
            ),
        )
    selected = _selected(model, selection)
    items = [Text(line) for line in ([selected] if selected else _attention(model))]
    legend = Text("  ".join(f"{STYLES[mark].glyph} {STYLES[mark].word}" for mark in Mark), style="dim")
    return Group(grid, legend, Text(), *items, Text(visible(model.headline), style="bold"), Text(model.proof))


def _rich_mark(result: ReportResult | None, *, wide: bool, lit: bool) -> RenderableType:
    from rich.text import Text

    if result is None:
        return Text(NOTHING, style="dim")
    style = STYLES[result.mark]
    text = Text(style.glyph, style=style.colour if lit else "dim")
    if wide:
        text.append(f" {style.word}", style="" if lit else "dim")
    if result.shown_evidence:
        text.append(f" {EVIDENCE[result.shown_evidence].tag}", style="dim")
    return text


def print_grid(model: ReportModel, console: Console, selection: GridSelection | None = None) -> None:
    """Print the grid, or the selected part, with colours if the console can show them."""
    if console.is_terminal and console.encoding.lower().startswith("utf"):
        console.print(rich_grid(model, console.width, selection))
    else:
        console.print(plain_grid(model, selection), markup=False, highlight=False, soft_wrap=True, end="")
