"""The lock of a cell, from the stored outcome of its check `resolve`."""

from __future__ import annotations

import os

from harness.builds.lock.cell_lock import CellLock, LockFacets, make_lock
from harness.builds.lock.commit_trees import add_tree_ids
from harness.builds.lock.extra_requirements import add_extra_requirements
from harness.errors import NothingSelectedError
from harness.ledger.store import Ledger
from harness.matrix.model.cell import Cell
from harness.matrix.version_matrix import Matrix
from harness.outcome import Outcome, State, Status
from harness.plan.keys.facets import facet_values
from harness.settings import Settings
from harness.sources.git.mirrors import mirror_folders
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT, ResolveMeasured
from harness.verdict.verdict import judge_outcome
from harness.workspace.open_ledger import open_ledger
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
            fix=_command(cell),
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
            fix=_command(cell),
        )
    return cell, context, outcome


def _command(cell: Cell) -> str:
    return f"npu-matrix run --only {cell.id} --check resolve"


def lock_of_cell(settings: Settings, name: str, base_digest: str) -> CellLock:
    """The lock of a cell; NothingSelectedError when the cell has no stored resolution."""
    with open_ledger(settings) as ledger:
        cell, context, outcome = _resolve_outcome(settings, ledger, name)
        ref = outcome.artifact("lock.txt")
        if ref is None:
            judgement = judge_outcome(context.plan.tasks[outcome.key].check, outcome)
            failed = judgement.status is Status.FAIL
            advice = "correct its pins" if failed else "wait until these indexes respond"
            raise NothingSelectedError(
                f"{cell.id} has no lock",
                why=" ".join(judgement.reasons),
                fix=f"{advice}, then {_command(cell)}",
            )
        text = ledger.artifacts.get(ref).read_text("utf-8")
    facets = facet_values(cell, FACETS, facet_inputs(settings, context.matrix))
    [facts] = context.plan.cells
    made = make_lock(
        LockFacets.read(facets),
        text,
        cell=cell.id,
        title=facts.title,
        axes=facts.axes,
        inconsistencies=[f"{finding.what} ({finding.source})" for finding in facts.findings],
        image_digest=base_digest,
        base_image=settings["base_image"],
        resolved_sources=RESOLVE_FORMAT.read(outcome.measurements).source_requirements,
        not_installed=_not_installed(context.matrix, cell),
    )
    mirrors = mirror_folders()
    return add_extra_requirements(add_tree_ids(made, mirrors), mirrors, os.environ)


def _not_installed(matrix: Matrix, cell: Cell) -> dict[str, str]:
    """Axes of a cell that have a repository but are not installed as a package."""
    return {
        f"{axis.title} {cell.axes[name]}": axis.repository
        for name, axis in matrix.axes.items()
        if name in cell.axes and axis.repository and not axis.package
    }
