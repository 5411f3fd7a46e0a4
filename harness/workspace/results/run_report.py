"""Gathers the inputs of the report of a run, and writes the report."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from harness import __version__
from harness.ledger.junit.junit_writer import junit_xml
from harness.ledger.store import Ledger
from harness.matrix.version_matrix import Matrix
from harness.plan.tasks.check_registry import all_checks
from harness.plan.tasks.task import Plan
from harness.report.model.gather import join_report_inputs, junit_cases, junit_suites
from harness.report.model.patch_facts import PatchFacts, read_patch_facts
from harness.report.model.report_inputs import (
    ExcludedCombination,
    KnownFailure,
    PublishedStatement,
    ReportInputs,
    RunFacts,
)
from harness.report.model.report_model import build_model
from harness.report.model.runs_before import revision_of
from harness.report.model.survival_facts import NameFacts, SurvivalFacts, read_names, read_survival
from harness.settings import Settings
from harness.sources.issue_states import FILE_NAME, IssueState, issues_in, read_issue_states
from harness.user_folders import home_folder
from harness.verdict.expectations import survey_expectations
from harness.workspace.patches.patch_facts_cache import patch_facts_files
from harness.workspace.patches.patch_survival_cache import patch_survival_file
from harness.workspace.planning.plan_selection import relative_location
from harness.workspace.results.commits_of_turns import commits_of_turns
from harness.workspace.results.stored_run import StoredRun

#: Settings that a reproduce command must repeat to use the same ledger, besides the profile.
REPRODUCE_OPTIONS = ("matrix", "state", "cache", "mirrors", "engine", "base_image")


def gather_report_inputs(
    settings: Settings,
    ledger: Ledger,
    stored: StoredRun,
    *,
    exit_code: int | None = None,
    since: str | None = None,
    survival: SurvivalFacts | None = None,
    names: NameFacts | None = None,
    patches: PatchFacts | None = None,
) -> ReportInputs:
    """The inputs of the report of a run.

    exit_code: the one to show, by default that of the run. since: the run to compare with, by default the
    previous one.
    """
    plan, matrix = stored.plan, stored.matrix
    now = time.time()
    known = plan.profile in matrix.profiles
    excluded = tuple(
        ExcludedCombination(
            axes=out.axes,
            reason=f"{out.constraint.reason} ({out.constraint.id}, "
            f"{relative_location(out.constraint.where, settings.root)})",
            source=out.constraint.source,
        )
        for out in (matrix.cells(plan.profile).excluded if known else ())
    )
    host = {name: str(value) for name, value in stored.run.host.items() if name != "revision"}
    inputs = join_report_inputs(
        plan,
        stored.verdicts,
        ledger,
        ReportInputs(
            generated=now,
            run=_run_facts(settings, stored, stored.exit_code if exit_code is None else exit_code, now),
            host=host,
            excluded=excluded,
            published=_published(matrix, plan),
            survival=survival,
            names=names,
            patches=patches,
            known=known_failures(settings, matrix),
        ),
        executed=stored.executed,
        folders={
            "cache": str(settings.cache),
            "state": str(settings.path("state")),
            "checkout": str(settings.root),
            "home": str(home_folder(os.environ)),
        },
        since=since,
    )
    turns = [turn for result in inputs.results for turn in result.turns]
    return replace(inputs, commits=commits_of_turns(settings, turns)) if turns else inputs


def _run_facts(settings: Settings, stored: StoredRun, exit_code: int | None, now: float) -> RunFacts:
    run, plan = stored.run, stored.plan
    return RunFacts(
        run_id=run.run_id,
        command=" ".join(("npu-matrix", *run.argv)),
        profile=plan.profile,
        revision=revision_of(run),
        version=__version__,
        started=run.started,
        seconds=(run.finished or now) - run.started,
        executed=len(stored.executed),
        reused=len(plan.tasks) - len(stored.executed),
        exit_code=exit_code,
        options=settings.flags(*REPRODUCE_OPTIONS),
        selection=plan.selection,
    )


def known_failures(settings: Settings, matrix: Matrix) -> tuple[KnownFailure, ...]:
    """The expected failures that matrix.yaml declares, with the states of their issues as last seen."""
    if not matrix.expectations:
        return ()
    states = read_issue_states(issue_states_file(settings))
    surveyed = survey_expectations(matrix, {check.name for check in all_checks()}, settings.root)
    return tuple(
        KnownFailure(
            id=one.id,
            owner=one.owner,
            check=one.check,
            state=one.state,
            reason=one.reason,
            source=one.source,
            until=one.until,
            where=one.where,
            fault=one.fault,
            cells=one.cells,
            issues=tuple(states.get(url, IssueState(url=url)) for url in issues_in(one.source)),
        )
        for one in surveyed
    )


def issue_states_file(settings: Settings) -> Path:
    """The file with the states of upstream issues, next to matrix.yaml, so that a team can commit it."""
    return settings.path("matrix").with_name(FILE_NAME)


def _published(matrix: Matrix, plan: Plan) -> tuple[PublishedStatement, ...]:
    """Published statements about stacks and recipes in the matrix; they are never outcomes."""
    found = []
    for cell in plan.cells:
        stack, recipe = matrix.stacks.get(cell.stack), matrix.recipes.get(cell.recipe)
        if stack:
            statements = ("these versions are what its source states", *stack.notes)
            found += [
                PublishedStatement(cell_id=cell.id, what=what, source=stack.source) for what in statements
            ]
        if recipe:
            found += [
                PublishedStatement(cell_id=cell.id, what=note, source=recipe.source) for note in recipe.notes
            ]
    return tuple(found)


def write_report(
    settings: Settings,
    ledger: Ledger,
    stored: StoredRun,
    *,
    exit_code: int | None = None,
    since: str | None = None,
    survival: Path | None = None,
    names: Path | None = None,
    patches: tuple[Path, ...] = (),
) -> Path:
    """Write the report of a run; returns its folder.

    survival, patches: output of `npu-matrix patches ... --json`, by default computed here. names: that of
    `npu-matrix api survival ... --json`. Other parameters
    are those of `gather_report_inputs`.
    """
    # `status` uses this module too, but not the pages and their templates.
    from harness.report.publish.publish import render_all

    survival = survival or patch_survival_file(settings, stored.matrix)
    patches = patches or patch_facts_files(settings, stored.matrix)
    inputs = gather_report_inputs(
        settings,
        ledger,
        stored,
        exit_code=exit_code,
        since=since,
        survival=read_survival(survival) if survival else None,
        names=read_names(names) if names else None,
        patches=read_patch_facts(patches) if patches else None,
    )
    folder = settings.path("reports")
    junit = junit_xml(junit_cases(inputs), junit_suites(inputs))
    render_all(build_model(inputs), folder, {"junit.xml": junit})
    return folder
