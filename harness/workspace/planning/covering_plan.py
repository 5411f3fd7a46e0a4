"""`plan --strength N`: a covering set of cells, its cost, and what more time would cover."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InputError, Location
from harness.matrix.model.cell import Cell
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.plan.cost.task_cost import Estimate, Forecast, duration, forecast
from harness.plan.covering.covering_set import MAX_STRENGTH, Cover, Universe, cover
from harness.plan.covering.time_budget import (
    BudgetedCover,
    CoveringStep,
    covering_steps,
    fit_into_budget,
    parse_duration,
)
from harness.plan.keys.code_digests import code_digests
from harness.plan.keys.keyring import Keyring
from harness.settings import Settings
from harness.workspace.planning.open_plan import (
    PlanContext,
    facet_inputs,
    inspect_this_host,
    open_matrix,
    open_plan,
)
from harness.workspace.planning.plan_history import PlanHistory, read_history, read_key_history
from harness.workspace.planning.plan_schedule import PlanReport
from harness.workspace.planning.plan_selection import select_cells, select_checks

TUPLES = {1: "values", 2: "pairs", 3: "triples"}


@dataclass(frozen=True, kw_only=True)
class _Candidates:
    """The cells to choose from, their keys by check, and the cost of tasks that still have to run."""

    cells: Sequence[Cell]
    keys: Sequence[Mapping[str, str]]
    known: PlanHistory
    work: Sequence[Mapping[str, Estimate]]


def choose_covering_cells(
    settings: Settings,
    only: Sequence[str],
    checks: Sequence[str],
    strength: int,
    budget: str | None,
    keep: Path | None,
) -> PlanReport:
    """The plan of a covering set, with JSON of the schema `npu-matrix.cover`.

    Keys are computed for all cells, tasks and entries only for those that are chosen.
    """
    try:
        seconds = parse_duration(budget) if budget else None
    except ValueError as error:
        raise InputError(str(error)) from None
    matrix = open_matrix(settings)
    field = _field(settings, matrix, only, checks)
    universe = Universe([cell.axes for cell in field.cells], strength)
    found = _cover(field, universe, _earlier(keep) if keep else field.known.planned_before)
    bought = fit_into_budget(found, covering_steps(found, field.work), universe, seconds)
    taken = [field.cells[step.index] for step in bought.taken]
    context = open_plan(settings, checks=checks, choose=lambda _matrix: taken or field.cells[:1])
    return PlanReport(
        context=context,
        known=read_history(context),
        json=_report(context, field, bought, seconds),
        lines=_lines(context, field, bought, budget),
        has_tasks=bool(bought.taken),
    )


def _field(settings: Settings, matrix: Matrix, only: Sequence[str], names: Sequence[str]) -> _Candidates:
    cells = select_cells(settings, matrix, only)
    checks = select_checks(names)
    ring = Keyring(checks, facet_inputs(settings, matrix), code_digests(checks, cache=settings.cache))
    columns = ring.keys(cells)
    keys = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    by_name = {check.name: check for check in checks}
    check_of_key = {key: by_name[name] for mine in keys for name, key in mine.items()}
    known = read_key_history(settings, check_of_key, inspect_this_host())
    costs = {
        (name, device): known.costs.estimate(check, device)
        for name, check in by_name.items()
        for device in {cell.device for cell in cells}
    }
    work = [
        {key: costs[name, cell.device] for name, key in mine.items() if key not in known.outcomes}
        for cell, mine in zip(cells, keys, strict=True)
    ]
    return _Candidates(cells=cells, keys=keys, known=known, work=work)


def _cover(field: _Candidates, universe: Universe, earlier: frozenset[str]) -> Cover:
    """Always include stacks and failed cells, keep the cells of the earlier plan, and prefer new cells."""
    failed = {key for key, judgement in field.known.judgements.items() if judgement.status is Status.FAIL}
    known = field.known.outcomes.keys()
    must: dict[int, str] = {}
    for number, cell in enumerate(field.cells):
        if cell.stack:
            must[number] = f"stack {cell.stack}"
        elif failed and not failed.isdisjoint(field.keys[number].values()):
            must[number] = "failed last time"
    return cover(
        universe.cells,
        universe.strength,
        must=must,
        keep=[number for number, cell in enumerate(field.cells) if cell.id in earlier],
        costs=[sum([estimate.seconds for estimate in mine.values()]) for mine in field.work],
        prefer=[number for number, mine in enumerate(field.keys) if known.isdisjoint(mine.values())],
        universe=universe,
    )


def _earlier(file: Path) -> frozenset[str]:
    """The ids of the cells in a stored plan or covering plan."""
    try:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        return frozenset(cell["id"] for cell in cells)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            "this is not a plan", where=Location(file), why=str(error), fix="npu-matrix plan --json > FILE"
        ) from None


def _report(
    context: PlanContext, field: _Candidates, bought: BudgetedCover, budget: float | None
) -> dict[str, object]:
    work = _forecast(bought, field)
    return {
        "schema": {"name": "npu-matrix.cover", "version": 1},
        "profile": context.plan.profile,
        "strength": bought.strength,
        "feasible": bought.tuples,
        "held": bought.covered,
        "budget_s": budget,
        "cells": [_step_json(field, step) for step in bought.taken],
        "left_out": [_step_json(field, step) for step in bought.left],
        "next_hour": {
            "cells": bought.next_hour.cells,
            "gained": bought.next_hour.gained,
            "seconds": round(bought.next_hour.seconds, 1),
        },
        "tasks": context.plan.record().tasks if bought.taken else [],
        "forecast": {
            "seconds": round(work.seconds, 1),
            "error_s": round(work.error, 1),
            "tasks": work.tasks,
            "guessed": work.guessed,
            "text": str(work),
        },
    }


def _step_json(field: _Candidates, step: CoveringStep) -> dict[str, object]:
    return {
        "id": field.cells[step.index].id,
        "gained": step.gained,
        "seconds": round(step.seconds, 1),
        "why": step.why,
    }


def _forecast(bought: BudgetedCover, field: _Candidates) -> Forecast:
    """The time of all tasks of the taken cells that still have to run."""
    distinct = {key: estimate for step in bought.taken for key, estimate in field.work[step.index].items()}
    return forecast(list(distinct.values()))


def _lines(context: PlanContext, field: _Candidates, bought: BudgetedCover, budget: str | None) -> list[str]:
    cells = field.cells
    tuples = TUPLES.get(bought.strength, f"{bought.strength}-tuples")
    width = max((len(cells[step.index].id) for step in bought.taken), default=0)
    lines = [
        f"{cells[step.index].id:<{width}}  +{step.gained:<4} {duration(step.seconds):>8}  "
        f"{step.why or cells[step.index].title}"
        for step in bought.taken
    ]
    skipped = sum(entry.skip is not None for entry in context.plan.entries)
    lines.append(
        f"{len(bought.taken)} of {len(cells)} cells cover {bought.covered} "
        f"of {bought.tuples} feasible {tuples} "
        f"({bought.coverage:.1%}); about {_forecast(bought, field)} of work"
    )
    offer = bought.next_hour
    if bought.left:
        lines.append(
            f"{len(bought.left)} cells do not fit {budget}; the next {duration(max(offer.seconds, 3600))} "
            f"would add {offer.cells} of them and cover {offer.gained} more {tuples}, "
            f"in total {(bought.covered + offer.gained) / bought.tuples:.1%}"
        )
    else:
        lines.append(_beyond(field, bought))
    if skipped:
        lines.append("note: includes work that this host cannot run; `npu-matrix plan` shows it")
    return lines


def _beyond(field: _Candidates, bought: BudgetedCover) -> str:
    """What a covering set of the next strength would add, for a set that covers every tuple."""
    strength = bought.strength + 1
    if strength > MAX_STRENGTH:
        return "every tuple is covered, and there is no greater strength"
    universe = Universe([cell.axes for cell in field.cells], strength)
    covered = universe.count_covered([step.index for step in bought.taken])
    tuples = TUPLES.get(strength, f"{strength}-tuples")
    share = covered / universe.size if universe.size else 1.0
    return (
        f"more cells would add nothing at strength {bought.strength}; of the {universe.size} feasible "
        f"{tuples} these cells cover {covered} ({share:.1%}), and --strength {strength} would cover the rest"
    )
