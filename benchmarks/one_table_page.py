"""The obvious alternative: one page with one table, every verdict of every cell and its first reason in it.

What a notebook's table or a wiki page would be: made in one go, filtered by hiding rows. It has no history,
no logs, no pages of cells, so in generating it has much less to do.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from harness.report.model.report_inputs import ReportInputs, ReportResult

SCRIPT = """
const rows = [...document.querySelectorAll("tbody tr")];
document.getElementById("q").addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(" ");
  for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
});
"""


def write_one_table(inputs: ReportInputs, folder: Path) -> Path:
    """Write the page; returns it."""
    by_cell: dict[str, list[ReportResult]] = {}
    for result in inputs.results:
        by_cell.setdefault(result.cell_id, []).append(result)
    names = [check.name for check in inputs.checks]
    rows = []
    for cell in inputs.cells:
        found = {result.check: result for result in by_cell.get(cell.id, [])}
        fields = [cell.id, cell.title, *cell.axes.values()]
        verdicts = [_verdict(found[name]) if name in found else "" for name in names]
        rows.append(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in fields)}{''.join(verdicts)}</tr>")
    axes = list(inputs.cells[0].axes)
    head = "".join(f"<th>{escape(name)}</th>" for name in ["cell", "title", *axes, *names])
    page = folder / "one-table.html"
    page.write_text(
        f'<!doctype html><meta charset="utf-8"><input id="q"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table><script>{SCRIPT}</script>",
        encoding="utf-8",
    )
    return page


def _verdict(result: ReportResult) -> str:
    evidence = result.verdict.evidence.value if result.verdict.evidence else ""
    return f"<td>{result.verdict.status.value} {evidence}<br>{escape('; '.join(result.verdict.reasons))}</td>"
