"""Ablation of patches: leaves out one patch at a time and compares the source tree, then the verdicts."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import EXIT_OK
from harness.matrix.model.cell import Cell
from harness.outcome import Status, Tier
from harness.patchstack.apply.classify import LoadedPatch
from harness.patchstack.stacks.ablation import UNKNOWN, Ablation, ablate_statically, judge_ablation
from harness.patchstack.stacks.patch_selection import select_by_name
from harness.patchstack.stacks.patch_stack import load_stack
from harness.plan.keys.variant import without_patches
from harness.run.scheduling.scheduler import run_plan
from harness.settings import Settings
from harness.verdict.verdict import judge_outcome
from harness.workspace.execution.run_setup import local_run
from harness.workspace.open_ledger import open_ledger
from harness.workspace.patches.patch_target import (
    TreeSelection,
    resolve_target,
    trees_of_cell,
    variants_for_target,
)
from harness.workspace.planning.open_plan import PlanContext, open_matrix, open_plan
from harness.workspace.planning.plan_selection import find_cell

LOGGER = logging.getLogger(__name__)


def ablate_tree(settings: Settings, names: Sequence[str], selection: TreeSelection) -> list[Ablation]:
    """Compare a tree with and without each named patch."""
    target, package = resolve_target(settings, selection)
    variants = variants_for_target(selection.patches(settings), target, package, ())
    selected = {variant.name for variant in select_by_name(variants, names)}
    found = ablate_statically(target.tree, variants, target.blobs)
    return [one for one in found if one.patch in selected]


def ablate_cell(
    settings: Settings, name: str, names: Sequence[str], checks: Sequence[str], *, static: bool
) -> tuple[list[Ablation], bool]:
    """Compare the trees of a cell, then its verdicts; also returns whether the run was interrupted."""
    matrix = open_matrix(settings)
    cell = find_cell(matrix, settings["profile"], name)
    found = _ablate_trees(settings, cell, names)
    if static:
        return found, False

    def planned(patch: str = "") -> PlanContext:
        variant = without_patches(cell, (patch,)) if patch else cell
        return open_plan(settings, checks=checks, choose=lambda _matrix: [variant])

    unknown = [one.patch for one in found if one.result == UNKNOWN]
    if not unknown:
        return found, False
    judged, interrupted = _run_without(settings, planned(), {patch: planned(patch) for patch in unknown})
    return [judged.get(one.patch, one) for one in found], interrupted


def _ablate_trees(settings: Settings, cell: Cell, names: Sequence[str]) -> list[Ablation]:
    """Compare the source trees with and without every selected patch of a cell."""
    found: list[Ablation] = []
    every: list[LoadedPatch] = []
    for readables, target, absent in trees_of_cell(settings, cell):
        every += readables
        if target is None:
            found += [
                Ablation(patch=readable.name, result=UNKNOWN, reasons=(absent,), compared=False)
                for readable in readables
            ]
        else:
            found += ablate_statically(target.tree, readables, target.blobs)
    selected = {readable.name for readable in select_by_name(every, names)}
    return [one for one in found if one.patch in selected]


def _run_without(
    settings: Settings, full: PlanContext, partial: Mapping[str, PlanContext]
) -> tuple[dict[str, Ablation], bool]:
    """Run the cell with all patches, then without each one; also returns whether it was interrupted."""
    found: dict[str, Ablation] = {}
    with local_run(settings) as (executor, stopped), open_ledger(settings) as ledger:
        executing = {
            task.check.name for task in full.plan.tasks.values() if task.check.tier.rank > Tier.BUILD.rank
        }
        before = _statuses(full, ledger, executor, stopped, "with every patch")
        for patch, context in partial.items():
            if stopped():
                break
            after = _statuses(context, ledger, executor, stopped, f"without {patch}")
            guards = _guards(settings.patches, patch)
            found[patch] = judge_ablation(patch, guards, before, after, executing)
        return found, stopped()


def _statuses(context: PlanContext, ledger: Any, executor: Any, stopped: Any, what: str) -> dict[str, Status]:
    """Check -> status, for the checks that have an outcome."""
    result = run_plan(context.plan, ledger, executor, judge_outcome, stopped=stopped, argv=sys.argv[1:])
    ledger.finish_run(result.run_id, EXIT_OK)
    tasks = context.plan.tasks
    statuses = {
        entry.check: judge_outcome(tasks[entry.key].check, result.outcomes[entry.key]).status
        for entry in context.plan.entries
        if entry.key in result.outcomes
    }
    summary = ", ".join(f"{check} {status.value}" for check, status in statuses.items())
    LOGGER.info("%s: %d run, %d known; %s", what, result.executed, result.reused, summary)
    return statuses


def _guards(patches: Path, patch: str) -> tuple[str, ...]:
    upstream, _slash, name = patch.partition("/")
    return next((one.guarded_by for one in load_stack(patches, upstream).patches if one.id == name), ())
