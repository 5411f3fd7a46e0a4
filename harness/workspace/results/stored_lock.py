"""The lock of a cell, from the stored outcome of its check `resolve`."""

from __future__ import annotations

import os

from harness.builds.lock.cell_lock import CellLock, LockFacets, make_lock
from harness.builds.lock.commit_trees import add_tree_ids
from harness.builds.lock.cpu_torch import with_cpu_torch
from harness.builds.lock.extra_requirements import add_extra_requirements
from harness.builds.lock.published_wheels import fitting_wheels
from harness.builds.lock.source_packages import PackageRepository, with_complete_sources
from harness.errors import NothingSelectedError
from harness.ledger.store import Ledger
from harness.matrix.model.cell import Cell
from harness.matrix.version_matrix import Matrix
from harness.outcome import Outcome, State, Status
from harness.plan.keys.facets import facet_values
from harness.settings import Settings
from harness.sources.git.mirrors import mirror_folders
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT, ResolveMeasured
from harness.verdict.verdict import judge_outcome
from harness.workspace.downloads import run_quietly
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.host_wheels import lookup_variants, variants_for
from harness.workspace.planning.open_plan import PlanContext, facet_inputs, open_plan
from harness.workspace.planning.plan_selection import find_cell
from harness.workspace.planning.upstream_mirrors import fetch_for_cells

FACETS = ("pins", "platform", "patches[verl]", "patches[vllm_ascend]", "patches[others]")


def stored_resolution(settings: Settings, name: str) -> ResolveMeasured:
    """The stored result of `resolve` for a cell; NothingSelectedError if the cell was not resolved."""
    with open_ledger(settings) as ledger:
        cell, _, outcome = _resolve_outcome(settings, ledger, name)
    if outcome.state is not State.COMPLETED:
        raise NothingSelectedError(
            f"{cell.id} was not resolved",
            why="the versions of its packages are unknown",
            fix=_command(settings, cell),
        )
    return RESOLVE_FORMAT.read(outcome.measurements)


def _resolve_outcome(settings: Settings, ledger: Ledger, name: str) -> tuple[Cell, PlanContext, Outcome]:
    """The cell, a plan of its check `resolve`, and its outcome; NothingSelectedError without an outcome."""
    context = open_plan(
        settings,
        checks=["resolve"],
        choose=lambda matrix: [find_cell(matrix, settings["profile"], name)],
    )
    cell = find_cell(context.matrix, settings["profile"], name)
    fetch_for_cells(settings, context.matrix, [cell.axes])
    outcome = ledger.get(next(entry.key for entry in context.plan.entries if entry.check == "resolve"))
    if outcome is None:
        raise NothingSelectedError(
            f"{cell.id} has not been resolved with its current pins",
            why="the versions of its packages are unknown",
            fix=_command(settings, cell),
        )
    return cell, context, outcome


#: Rows as they are published may contradict themselves, and who only uses them cannot correct them.
CHOOSE_OTHERS = "choose versions that are compatible (`npu-matrix advise` names some), or correct its pins"


def _command(settings: Settings, cell: Cell) -> str:
    return f"{settings.run_command} --only {cell.id} --check resolve"


def lock_of_cell(settings: Settings, name: str, base_digest: str, registry: str = "") -> CellLock:
    """The lock of a cell; NothingSelectedError when the cell has no stored resolution.

    registry: where the base image is published, see `default_base_image`.
    """
    with open_ledger(settings) as ledger:
        cell, context, outcome = _resolve_outcome(settings, ledger, name)
        ref = outcome.artifact("lock.txt")
        if ref is None:
            judgement = judge_outcome(context.plan.tasks[outcome.key].check, outcome)
            failed = judgement.status is Status.FAIL
            advice = CHOOSE_OTHERS if failed else "wait until these indexes respond"
            raise NothingSelectedError(
                f"{cell.id} has no lock",
                why=" ".join(judgement.reasons),
                fix=f"{advice}, then {_command(settings, cell)}",
            )
        text = ledger.artifacts.get(ref).read_text("utf-8")
    facets = facet_values(cell, FACETS, facet_inputs(settings, context.matrix))
    [facts] = context.plan.cells
    resolved = RESOLVE_FORMAT.read(outcome.measurements)
    made = make_lock(
        LockFacets.read(facets),
        text,
        cell=cell.id,
        title=facts.title,
        axes=facts.axes,
        inconsistencies=[f"{finding.what} ({finding.source})" for finding in facts.findings],
        image_digest=base_digest,
        base_image=settings["base_image"],
        registry=registry,
        resolved_sources=resolved.source_requirements,
        searched=resolved.indexes,
        wheels=fitting_wheels(resolved, facts.axes.get("soc", "")),
        without_wheel=resolved.from_sdist,
        not_installed=_not_installed(context.matrix, cell),
    )
    values, arch = dict(facts.axes), made.arch
    made = made.with_variants(variants_for(context.matrix, values, made.compiled, arch, lookup_variants))
    mirrors = mirror_folders()
    releases = ReleaseFetcher(
        cache=settings.cache, command=run_quietly, indexes=resolved.reachable(made.indexes)
    )
    repositories = _repositories(context.matrix, made)
    complete = with_complete_sources(made, releases, repositories, mirrors, os.environ)
    pinned = add_extra_requirements(add_tree_ids(complete, mirrors), mirrors, os.environ)
    return with_cpu_torch(pinned, os.environ)


def _repositories(matrix: Matrix, lock: CellLock) -> dict[str, PackageRepository]:
    """Package of the lock -> its repository and the tag of its version, where its axis states both."""
    axes = {normal_name(axis.package): axis for axis in matrix.axes.values() if axis.package}
    return {
        package.name: PackageRepository(url=axis.repository, tag=axis.tag.format(version=package.version))
        for package in lock.packages
        if (axis := axes.get(package.name)) and axis.repository and axis.tag
    }


def _not_installed(matrix: Matrix, cell: Cell) -> dict[str, str]:
    """Axes of a cell that have a repository but are not installed as a package."""
    return {
        f"{axis.title} {cell.axes[name]}": axis.repository
        for name, axis in matrix.axes.items()
        if name in cell.axes and axis.repository and not axis.package
    }
