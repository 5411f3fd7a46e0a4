"""The page with the changes between two runs, and the summary of changes above the grid."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from harness.report.model.changes import MEANINGS, RunChange, RunChangeKind
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel
from harness.report.model.visible_text import clip, file_name, moment, visible
from harness.report.pages.page_templates import PageWriter, anchor_of, environment

MAX_CHANGES = 200
#: The kinds that the summary counts; the page of changes shows the others too.
COUNTED = (
    RunChangeKind.BROKEN,
    RunChangeKind.LOST,
    RunChangeKind.WEAKER,
    RunChangeKind.FIXED,
    RunChangeKind.STILL,
)
#: The kinds of which some may be expected failures.
FAILS = (RunChangeKind.BROKEN, RunChangeKind.STILL)


@dataclass(frozen=True, kw_only=True)
class ChangesSinceRun:
    """How many changes of each kind there are since an earlier run, its id, and when it started."""

    counts: str
    run: str
    when: str


def change_summary(model: ReportModel) -> ChangesSinceRun | None:
    """The summary, such as `2 newly broken, 3 still broken (2 expected)`; None without an earlier run."""
    if model.inputs.earlier is None:
        return None
    return ChangesSinceRun(
        counts=_counts(model), run=model.inputs.earlier.run_id, when=moment(model.inputs.earlier.started)
    )


def changes_page(model: ReportModel, writer: PageWriter) -> str:
    """The page as HTML."""
    headline = "There is no earlier run to compare with."
    nothing = "Changes appear here from the second run on."
    if model.inputs.earlier is not None:
        headline = f"{_counts(model)} since {moment(model.inputs.earlier.started)}."
        nothing = "Every check that was planned in both runs has the same verdict."
    by_id = {row.cell.id: row for row in model.rows}
    groups = []
    for turn, total in model.turns.items():
        changes = [change for change in model.changes if change.turn is turn][:MAX_CHANGES]
        shown = []
        for change in changes:
            row = by_id.get(change.cell)
            result = row.results.get(change.check) if row else None
            href = f"cells/{row.slug}.html#{anchor_of(change.check)}" if row and result else ""
            shown.append(_shown(change, row.cell.name if row else change.cell, result, href))
        groups.append(
            {
                "name": turn.value,
                "anchor": file_name(turn.value.replace(" ", "-")),
                "meaning": MEANINGS[turn],
                "total": total,
                "changes": shown,
            }
        )
    template = environment(writer, up="").get_template("changes.html")
    return template.render(model=model, headline=headline, nothing=nothing, groups=groups)


def _counts(model: ReportModel) -> str:
    expected = Counter(change.turn for change in model.changes if change.expected and change.turn in FAILS)
    counts = [
        f"{count} {turn.value}" + (f" ({expected[turn]} expected)" if expected[turn] else "")
        for turn, count in model.turns.items()
        if turn in COUNTED
    ]
    return visible(clip(", ".join(counts))) if counts else "Nothing broke and nothing was fixed"


def _shown(change: RunChange, title: str, result: ReportResult | None, href: str) -> dict[str, object]:
    verdict = change.before if change.turn in {RunChangeKind.FIXED, RunChangeKind.REMOVED} else change.after
    reason = verdict.reason if verdict else ""
    return {
        "check": change.check,
        "title": title,
        "before": change.before,
        "result": result,
        "href": href,
        "reason": f"It failed because: {reason}" if reason and change.turn is RunChangeKind.FIXED else reason,
        "causes": change.causes,
        "same": change.same_inputs,
    }
