"""The page of patches: every patch on every cell and, if measured, over the history of the upstream."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from harness.patchstack.apply.patch_verdict import MEANING, MeasuredPatch, PatchVerdict
from harness.patchstack.patch_measurements import PatchesMeasured
from harness.report.model.marks import Mark
from harness.report.model.patch_facts import ENDED, PatchFacts
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.survival_facts import name_heat_map, patch_heat_map, turning_points
from harness.report.pages.page_templates import PageWriter, anchor_of, environment

#: How many names are shown of those that break.
MAX_NAMES = 150
MAX_ROWS = 500
#: Verdicts with which a patch stack still applies.
APPLICABLE = (PatchVerdict.CLEAN.value, PatchVerdict.OFFSET.value, PatchVerdict.ALREADY_UPSTREAM.value, ENDED)
REBASED = "rebased.json"
REBASE = ("--repo", "CLONE", "--to", "HEAD", "--out", "rebased")
#: The mark of a verdict on a patch; the page shows the verdict itself next to it.
DRAWN = {
    PatchVerdict.CLEAN: Mark.PASS,
    PatchVerdict.OFFSET: Mark.PASS,
    PatchVerdict.ALREADY_UPSTREAM: Mark.UNEXPECTED_PASS,
    PatchVerdict.MERGED: Mark.INCONCLUSIVE,
    PatchVerdict.LINE_ENDINGS: Mark.INCONCLUSIVE,
    PatchVerdict.UNSUPPORTED: Mark.INCONCLUSIVE,
}


@dataclass(frozen=True, kw_only=True)
class PatchTile:
    """A patch on a cell. verdict: "not checked" if the tree of the upstream was not available."""

    verdict: str
    mark: Mark
    offset: int = 0
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class PatchRow:
    """The patches of a cell by name; href: the link to the check."""

    title: str
    href: str
    tree: str
    tiles: Mapping[str, PatchTile]


def patches_page(model: ReportModel, writer: PageWriter) -> str:
    """The page as HTML."""
    rows = [
        row for cell, result in model.measured(PatchesMeasured) if (row := _row(cell, result)) is not None
    ]
    names = list(dict.fromkeys(name for row in rows for name in row.tiles))
    survival, names_used = model.inputs.survival, model.inputs.names
    return (
        environment(writer, up="")
        .get_template("patches.html")
        .render(
            model=model,
            names=names,
            rows=rows[:MAX_ROWS],
            more=max(0, len(rows) - MAX_ROWS),
            totals=[_total(name, rows) for name in names],
            meanings=[
                (DRAWN.get(verdict, Mark.FAIL), verdict.value, MEANING[verdict]) for verdict in PatchVerdict
            ],
            survival=survival,
            facts=model.inputs.patches,
            stuck=_rebases(model.inputs.patches) if model.inputs.patches else (),
            mark_of_verdict=_mark,
            heat=patch_heat_map(survival) if survival else "",
            followed=names_used,
            name_heat=name_heat_map(names_used, MAX_NAMES) if names_used else "",
            most_names=MAX_NAMES,
            turns=turning_points(survival) if survival else (),
        )
    )


def _rebases(facts: PatchFacts) -> tuple[str, ...]:
    """The command that rebases each patch that does not apply to a head."""
    return tuple(
        shlex.join(["npu-matrix", "patches", "rebase", head.patch, *REBASE]) + f" --json > {REBASED}"
        for head in facts.heads
        if head.verdict not in APPLICABLE
    )


def _row(cell: ReportRow, result: ReportResult) -> PatchRow | None:
    """The patches in a result; None if it is of another check, or the cell has no patches."""
    measured = result.typed
    if not isinstance(measured, PatchesMeasured):
        return None
    known = {patch.patch: _tile(patch) for patch in measured.verdicts}
    for name in measured.selected:
        known.setdefault(name, PatchTile(verdict="not checked", mark=Mark.NOT_RUN, reason=measured.reason))
    if not known:
        return None
    return PatchRow(
        title=cell.cell.name,
        href=f"cells/{cell.slug}.html#{anchor_of(result.check)}",
        tree=measured.tree,
        tiles=known,
    )


def _tile(patch: MeasuredPatch) -> PatchTile:
    return PatchTile(
        verdict=patch.verdict.value,
        mark=_mark(patch.verdict.value),
        offset=patch.offset,
        reason=next(iter(patch.reasons), ""),
        remedy=next(iter(patch.remedies), ""),
    )


def _mark(word: str) -> Mark:
    """The mark of a verdict; inconclusive for a verdict that this version does not know."""
    if word == ENDED:
        return Mark.UNSUPPORTED
    verdict = next((verdict for verdict in PatchVerdict if verdict.value == word), None)
    return DRAWN.get(verdict, Mark.FAIL) if verdict else Mark.INCONCLUSIVE


def _total(name: str, rows: list[PatchRow]) -> dict[str, object]:
    """A patch over all cells: the number of each verdict, and the first reason why it does not apply."""
    tiles = [row.tiles[name] for row in rows if name in row.tiles]
    looked = [tile for tile in tiles if tile.mark is not Mark.NOT_RUN]
    wrong = next((tile for tile in looked if tile.mark is not Mark.PASS), None)
    counts = Counter(tile.verdict for tile in tiles)
    return {
        "name": name,
        "applies": sum(tile.mark is Mark.PASS for tile in looked),
        "looked": len(looked),
        "verdicts": ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()),
        "reason": wrong.reason if wrong else "",
        "remedy": wrong.remedy if wrong else "",
    }
