"""The size of the first view of the shipped matrix's report: what a browser loads in order to show it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from harness.outcome import Evidence, Status, Tier
from harness.plan.tasks.task import Plan
from harness.report.model.report_inputs import CheckColumn, ReportInputs, ReportResult
from harness.report.model.report_model import build_model
from harness.report.publish.publish import render_all
from harness.settings import load_settings
from harness.verdict.verdict import Standing, Verdict
from harness.workspace.planning.open_plan import open_plan

ROOT = Path(__file__).parents[3]
LIMIT = 300_000
#: Longer than nearly all reasons and remedies.
REASON, REMEDY = "the pinned version has another reason " * 6, "Choose another version of it. " * 6


def every_static_check_fails(plan: Plan) -> Mapping[tuple[str, str], Verdict]:
    """The verdicts of a run in which every static check of every cell fails for a reason of its own."""
    return {
        (entry.cell_id, entry.check): Verdict(
            cell_id=entry.cell_id,
            check=entry.check,
            status=Status.FAIL if entry.tier is Tier.STATIC else Status.NOT_RUN,
            standing=Standing.AS_EXPECTED,
            evidence=Evidence.STATIC if entry.tier is Tier.STATIC else None,
            reasons=(f"{entry.cell_id}: {REASON}",)
            if entry.tier is Tier.STATIC
            else ("no NPU on this host",),
            remedies=(REMEDY,),
        )
        for entry in plan.entries
    }


def test_the_first_view_of_the_shipped_matrix_is_small(tmp_path: Path) -> None:
    plan = open_plan(load_settings({}, {}, ROOT)).plan
    verdicts = every_static_check_fails(plan)
    columns = {entry.check: CheckColumn(name=entry.check, tier=entry.tier) for entry in plan.entries}
    inputs = ReportInputs(
        generated=1_800_000_000.0,
        cells=plan.cells,
        checks=tuple(columns.values()),
        results=tuple(
            ReportResult(entry=entry, verdict=verdicts[entry.cell_id, entry.check]) for entry in plan.entries
        ),
    )
    folder = tmp_path / "reports"
    render_all(build_model(inputs), folder)
    page = (folder / "index.html").read_text("utf-8")
    loaded = ["index.html", *re.findall(r'(?:src|href)="((?:assets|data)/[^"]+)"', page)]
    assert len(loaded) > 5
    sizes = {name: (folder / name).stat().st_size for name in loaded}
    assert sum(sizes.values()) < LIMIT, sizes
