"""Gathers the inputs of the report of a run, and writes the report."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path

from harness import __version__
from harness.builds.ownership.temporary_folders import temporary_folder
from harness.ledger.junit.junit_files import write_junit
from harness.ledger.store import Ledger
from harness.matrix.version_matrix import Matrix
from harness.plan.tasks.task import Plan
from harness.report.model.earlier_runs import revision_of
from harness.report.model.gather import ReportContext, join_report_inputs, junit_cases, junit_suites
from harness.report.model.patch_facts import read_patch_facts
from harness.report.model.report_inputs import ExcludedInput, PublishedInput, ReportInputs, RunFacts
from harness.report.model.report_model import build_model
from harness.report.model.survival_facts import read_survival
from harness.report.publish.publish import render_all
from harness.settings import Settings
from harness.verdict.verdict import Verdict
from harness.workspace.patches.patch_facts_cache import patch_facts_files
from harness.workspace.patches.patch_survival_cache import patch_survival_file
from harness.workspace.planning.plan_selection import relative_location

#: Settings that a reproduce command must repeat to use the same ledger, besides the profile.
REPRODUCE_OPTIONS = ("matrix", "state", "cache", "engine", "base_image")


def gather_report_inputs(
    settings: Settings,
    matrix: Matrix,
    plan: Plan,
    verdicts: Sequence[Verdict],
    ledger: Ledger,
    run_id: str,
    executed: Collection[str],
    code: int,
    *,
    since: str | None = None,
    survival: Path | None = None,
    patches: tuple[Path, ...] = (),
) -> ReportInputs:
    """The inputs of the report of a run; `since` is the run to compare with, by default the previous one."""
    run = ledger.run(run_id)
    now = time.time()
    started = run.started if run else now
    facts = RunFacts(
        run_id=run_id,
        command=" ".join(("npu-matrix", *(run.argv if run else ()))),
        profile=plan.profile,
        revision=revision_of(run) if run else "",
        version=__version__,
        started=started,
        seconds=(run.finished if run and run.finished else now) - started,
        executed=len(executed),
        reused=len(plan.tasks) - len(executed),
        exit_code=code,
        options=settings.flags(*REPRODUCE_OPTIONS),
    )
    known = plan.profile in matrix.profiles
    excluded = tuple(
        ExcludedInput(
            axes=out.axes,
            reason=f"{out.reason} ({out.constraint}, {relative_location(out.where, settings.root)})",
            source=out.source,
        )
        for out in (matrix.cells(plan.profile).excluded if known else ())
    )
    host = {name: str(value) for name, value in (run.host if run else {}).items() if name != "revision"}
    return join_report_inputs(
        plan,
        verdicts,
        ledger,
        ReportContext(
            generated=now,
            run=facts,
            executed=executed,
            host=host,
            excluded=excluded,
            published=_published(matrix, plan),
            folders={
                "cache": str(settings.cache),
                "state": str(settings.path("state")),
                "checkout": str(settings.root),
                "home": str(Path.home()),
            },
            since=since,
            survival=read_survival(survival) if survival else None,
            patches=read_patch_facts(patches) if patches else None,
        ),
    )


def _published(matrix: Matrix, plan: Plan) -> tuple[PublishedInput, ...]:
    """Published statements about stacks and recipes in the matrix; they are never outcomes."""
    found = []
    for cell in plan.cells:
        stack, recipe = matrix.stacks.get(cell.stack), matrix.recipes.get(cell.recipe)
        if stack:
            said = ("these versions are what its source states", *stack.notes)
            found += [PublishedInput(cell_id=cell.id, what=what, source=stack.source) for what in said]
        if recipe:
            found += [
                PublishedInput(cell_id=cell.id, what=note, source=recipe.source) for note in recipe.notes
            ]
    return tuple(found)


def write_report(
    settings: Settings,
    matrix: Matrix,
    plan: Plan,
    verdicts: Sequence[Verdict],
    ledger: Ledger,
    run_id: str,
    executed: Collection[str],
    code: int,
    *,
    since: str | None = None,
    survival: Path | None = None,
    patches: tuple[Path, ...] = (),
) -> Path:
    """Write the report of a run; returns its folder."""
    survival = survival or patch_survival_file(settings, matrix)
    patches = patches or patch_facts_files(settings, matrix)
    inputs = gather_report_inputs(
        settings,
        matrix,
        plan,
        verdicts,
        ledger,
        run_id,
        executed,
        code,
        since=since,
        survival=survival,
        patches=patches,
    )
    folder = settings.path("reports")
    junit = junit_xml(junit_cases(inputs), junit_suites(inputs))
    render_all(build_model(inputs), folder, {"junit.xml": junit})
    return folder
