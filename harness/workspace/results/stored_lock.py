"""The lock of a cell, from the stored outcome of its check `resolve`."""

from __future__ import annotations

import os

from harness.builds.lock.cell_lock import CellLock, LockFacets, make_lock
from harness.builds.lock.commit_trees import add_tree_ids
from harness.builds.lock.extra_requirements import add_extra_requirements
from harness.errors import NothingSelectedError
from harness.matrix.model.cell import Cell
from harness.matrix.version_matrix import Matrix
from harness.outcome import State, Status
from harness.plan.keys.facets import facet_values
from harness.settings import Settings
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT, ResolveMeasured
from harness.verdict.verdict import judge_outcome
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.open_plan import facet_inputs, open_matrix, open_plan
from harness.workspace.planning.plan_selection import find_cell


def stored_resolution(settings: Settings, cell_id: str) -> ResolveMeasured:
    """The stored result of `resolve` for a cell; NothingSelectedError if the cell was not resolved."""
    plan = open_plan(settings, only=[cell_id], checks=["resolve"]).plan
    key = next(entry.key for entry in plan.entries if entry.check == "resolve")
    with open_ledger(settings) as ledger:
        outcome = ledger.get(key)
    if outcome is None or outcome.state is not State.COMPLETED:
        raise NothingSelectedError(
            f"{cell_id} was not resolved, so the versions of its packages are unknown",
            fix=f"npu-matrix run --only {cell_id} --check resolve",
        )
    return RESOLVE_FORMAT.read(outcome.measurements)


FACETS = ("pins", "platform", "patches[verl]", "patches[vllm_ascend]")


def lock_of_cell(settings: Settings, name: str, base_digest: str) -> CellLock:
    """The lock of a cell; NothingSelectedError when the cell has no stored resolution."""
    matrix = open_matrix(settings)
    cell = find_cell(matrix, settings["profile"], name)
    plan = open_plan(settings, only=[cell.id], checks=["resolve"]).plan
    key = next(entry.key for entry in plan.entries if entry.check == "resolve")
    command = f"npu-matrix run --only {cell.id} --check resolve"
    with open_ledger(settings) as ledger:
        outcome = ledger.get(key)
        if outcome is None:
            raise NothingSelectedError(f"{cell.id} has not been resolved with its current pins", fix=command)
        ref = outcome.artifact("lock.txt")
        if ref is None:
            judgement = judge_outcome(plan.tasks[key].check, outcome)
            failed = judgement.status is Status.FAIL
            raise NothingSelectedError(
                f"{cell.id} has no lock",
                why=" ".join(judgement.reasons),
                fix=f"{'correct its pins' if failed else 'wait until these indexes respond'}, then {command}",
            )
        text = ledger.artifacts.get(ref).read_text("utf-8")
    facets = facet_values(cell, FACETS, facet_inputs(settings, matrix))
    facts = next(one for one in plan.cells if one.id == cell.id)
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
        not_installed=_apart(matrix, cell),
    )
    mirrors = settings.path("mirrors") if settings["mirrors"] else None
    return add_extra_requirements(add_tree_ids(made, mirrors), mirrors, os.environ)


def _apart(matrix: Matrix, cell: Cell) -> dict[str, str]:
    """Axes of a cell that have a repository but are not installed as a package."""
    return {
        f"{axis.title} {cell.axes[name]}": axis.repository
        for name, axis in matrix.axes.items()
        if name in cell.axes and axis.repository and not axis.package
    }
