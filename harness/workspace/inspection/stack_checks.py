"""Runs the static checks of the matrix on combinations of versions that no stack of the matrix has."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import EXIT_INTERRUPTED, EXIT_OK, InterruptedRunError, Location
from harness.matrix.cells.pins import resolve_rules
from harness.matrix.model.cell import Cell, Pin, cell_id
from harness.matrix.version_matrix import Matrix
from harness.outcome import Judgement, Outcome
from harness.plan.tasks.task import Task
from harness.run.scheduling.scheduler import RunPolicy, run_plan
from harness.settings import Settings
from harness.verdict.plan_verdicts import judge_stored
from harness.verdict.verdict import judge_outcome
from harness.workspace.execution.run_setup import local_run
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.open_plan import open_plan

#: The checks of the static tier that are about versions. `patches` and `lint` are about a checkout.
CHECKS = ("resolve", "constraints", "npu-ops", "api")
#: Axes that only stacks on an NPU have.
ON_NPU = frozenset({"cann", "driver", "soc", "torch_npu", "vllm_ascend", "triton_ascend", "mindspeed"})
#: The architecture of most hosts without an NPU.
OTHER_ARCHITECTURE = "x86_64"
#: The folder of the cache with the outcomes of inspected combinations.
STATE = "inspect"


@dataclass(frozen=True, kw_only=True)
class CheckedEntry:
    """One check of a combination. skipped: why it was not run, else "". task, outcome: None if skipped."""

    check: str
    judgement: Judgement | None = None
    skipped: str = ""
    task: Task | None = None
    outcome: Outcome | None = None


def combination(matrix: Matrix, axes: Mapping[str, str], others: Sequence[str], where: str) -> Cell:
    """A cell with these versions. others: requirements of packages that are no axis. where: their source.

    In a list without anything for an NPU, all that packages require is in force: the matrix replaces
    requirements only of builds for an NPU.
    """
    on_npu = bool(ON_NPU & axes.keys()) or axes.get("device") in {"npu", "sim"}
    if not on_npu and "arch" in matrix.axes:
        axes = {"arch": OTHER_ARCHITECTURE, **axes}
    ordered = {name: axes[name] for name in matrix.axes if name in axes}
    versions = matrix.versions(ordered)
    stated = tuple(
        Pin(requirement=text, reason="found there", source=where, where=Location(where)) for text in others
    )
    return Cell(
        id=cell_id("inspected", {**ordered, "others": " ".join(sorted(others))}),
        stack="",
        title=where,
        axes=ordered,
        provenance={},
        pins=(*resolve_rules(matrix.pin_rules, versions), *stated),
        overrides=resolve_rules(matrix.override_rules, versions) if on_npu else (),
        inspected=True,
    )


def check_combinations(
    settings: Settings, cells: Sequence[Cell], checks: Sequence[str] = CHECKS
) -> dict[str, tuple[CheckedEntry, ...]]:
    """Cell id -> its checks, run or reused from earlier inspections. InterruptedRunError if stopped."""
    own = settings.overridden({"state": str(settings.cache / STATE)})
    context = open_plan(own, checks=checks, choose=lambda _matrix: list(cells))
    with open_ledger(own) as ledger, local_run(own) as (executor, stopped):
        result = run_plan(
            context.plan,
            ledger,
            executor,
            judge_outcome,
            policy=RunPolicy(keep_going=True),
            stopped=stopped,
            argv=sys.argv[1:],
        )
        ledger.finish_run(result.run_id, EXIT_INTERRUPTED if result.interrupted else EXIT_OK)
        if result.interrupted:
            raise InterruptedRunError("the inspection was interrupted", fix="run the same command again")
        outcomes = ledger.get_many(context.plan.tasks)
    found: dict[str, tuple[CheckedEntry, ...]] = {}
    for entry in context.plan.entries:
        task = context.plan.tasks.get(entry.key) if entry.key else None
        outcome = outcomes.get(entry.key) if task else None
        if task is None or outcome is None:
            reason = entry.skip.reason if entry.skip else "it has no outcome"
            checked = CheckedEntry(check=entry.check, skipped=reason)
        else:
            judgement = judge_stored(task, outcome)[0]
            checked = CheckedEntry(check=entry.check, judgement=judgement, task=task, outcome=outcome)
        found[entry.cell_id] = (*found.get(entry.cell_id, ()), checked)
    return found
