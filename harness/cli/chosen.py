"""`plan --strength N`: cells that hold every feasible tuple, what they cost, what more time would buy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import InputError, Location

if TYPE_CHECKING:
    from harness.cli.bench import Bench
    from harness.cli.knowledge import Knowledge
    from harness.plan.budget import Purchase, Step
    from harness.plan.cost import Estimate

TUPLES = {1: "values", 2: "pairs", 3: "triples"}


def chosen(
    bench: Bench, known: Knowledge, strength: int, budget: str | None, keep: Path | None
) -> tuple[dict[str, Any], list[str]]:
    """The report as JSON (schema `npu-matrix.cover`), and as lines of text."""
    from harness.outcome import Status
    from harness.plan.budget import buy, parse_span, steps
    from harness.plan.covering import Universe, cover

    cells = bench.plan.cells
    work = _work(bench, known)
    must = {number: f"stack {cell.stack}" for number, cell in enumerate(cells) if cell.stack}
    keys = {entry.cell_id: set[str]() for entry in bench.plan.entries}
    for entry in bench.plan.entries:
        keys[entry.cell_id].add(entry.key)
    red = {key for key, judgement in known.judgements.items() if judgement.status is Status.FAIL}
    must |= {
        number: "red last time" for number, cell in enumerate(cells) if keys[cell.id] & red and not cell.stack
    }
    earlier = _earlier(keep) if keep else known.planned_before
    universe = Universe([cell.axes for cell in cells], strength)
    found = cover(
        universe.cells,
        strength,
        must=must,
        keep=[number for number, cell in enumerate(cells) if cell.id in earlier],
        costs=[sum(estimate.seconds for estimate in mine.values()) for mine in work],
        prefer=[number for number, cell in enumerate(cells) if not keys[cell.id] & known.outcomes.keys()],
        universe=universe,
    )
    try:
        seconds = parse_span(budget) if budget else None
    except ValueError as error:
        raise InputError(str(error)) from None
    bought = buy(found, steps(found, work), universe, seconds)
    return _report(bench, bought, work, seconds), _lines(bench, bought, work, budget)


def _work(bench: Bench, known: Knowledge) -> list[Mapping[str, Estimate]]:
    """For each cell what is still to be run: task -> cost. What this host cannot run costs all the same."""
    from harness.plan.registry import all_checks

    checks = {check.name: check for check in all_checks()}
    work: dict[str, dict[str, Estimate]] = {cell.id: {} for cell in bench.plan.cells}
    device = {cell.id: cell.device for cell in bench.plan.cells}
    for entry in bench.plan.entries:
        if entry.key in known.outcomes:
            continue
        name = entry.key or f"{entry.check} of {entry.cell_id}"
        work[entry.cell_id][name] = known.costs.estimate(checks[entry.check], device[entry.cell_id])
    return [work[cell.id] for cell in bench.plan.cells]


def _earlier(file: Path) -> frozenset[str]:
    """The ids of the cells in a stored plan or covering plan."""
    try:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        return frozenset(cell["id"] for cell in cells)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            "this is no plan", where=Location(file), why=str(error), fix="npu-matrix plan --json > FILE"
        ) from None


def _report(
    bench: Bench, bought: Purchase, work: list[Mapping[str, Estimate]], budget: float | None
) -> dict[str, Any]:
    ids = {bench.plan.cells[step.index].id for step in bought.taken}
    entries = [entry for entry in bench.plan.to_json()["entries"] if entry["cell"] in ids]
    wanted = {entry["key"] for entry in entries}
    return {
        "schema": {"name": "npu-matrix.cover", "version": 1},
        "profile": bench.plan.profile,
        "strength": bought.strength,
        "feasible": bought.tuples,
        "held": bought.held,
        "budget_s": budget,
        "cells": [_step_json(bench, step) for step in bought.taken],
        "left_out": [_step_json(bench, step) for step in bought.left],
        "next_hour": {
            "cells": bought.next_hour.cells,
            "gained": bought.next_hour.gained,
            "seconds": round(bought.next_hour.seconds, 1),
        },
        "tasks": [task for task in bench.plan.to_json()["tasks"] if task["key"] in wanted],
        "forecast": _forecast(bought, work),
    }


def _step_json(bench: Bench, step: Step) -> dict[str, Any]:
    return {
        "id": bench.plan.cells[step.index].id,
        "gained": step.gained,
        "seconds": round(step.seconds, 1),
        "why": step.why,
    }


def _forecast(bought: Purchase, work: list[Mapping[str, Estimate]]) -> dict[str, Any]:
    from harness.plan.cost import forecast

    distinct = {name: estimate for step in bought.taken for name, estimate in work[step.index].items()}
    told = forecast(list(distinct.values()))
    return {
        "seconds": round(told.seconds, 1),
        "error_s": round(told.error, 1),
        "tasks": told.tasks,
        "guessed": told.guessed,
        "text": str(told),
    }


def _lines(
    bench: Bench, bought: Purchase, work: list[Mapping[str, Estimate]], budget: str | None
) -> list[str]:
    from harness.plan.cost import duration

    cells = bench.plan.cells
    tuples = TUPLES.get(bought.strength, f"{bought.strength}-tuples")
    width = max((len(cells[step.index].id) for step in bought.taken), default=0)
    lines = [
        f"{cells[step.index].id:<{width}}  +{step.gained:<4} {duration(step.seconds):>8}  "
        f"{step.why or cells[step.index].title}"
        for step in bought.taken
    ]
    skipped = sum(entry.skip is not None for entry in bench.plan.entries)
    lines.append(
        f"{len(bought.taken)} of {len(cells)} cells hold {bought.held} of {bought.tuples} feasible {tuples} "
        f"({bought.coverage:.1%}); about {_forecast(bought, work)['text']} of work"
    )
    offer = bought.next_hour
    if bought.left:
        lines.append(
            f"{len(bought.left)} cells do not fit {budget}; the next {duration(max(offer.seconds, 3600))} "
            f"would buy {offer.cells} of them and {offer.gained} more {tuples}, "
            f"to {(bought.held + offer.gained) / bought.tuples:.1%}"
        )
    else:
        lines.append(_beyond(bench, bought))
    if skipped:
        lines.append("note: includes work this host cannot run; `npu-matrix plan` says what and why")
    return lines


def _beyond(bench: Bench, bought: Purchase) -> str:
    """With every tuple held: how much of the next strength is, which is what more time would buy."""
    from harness.plan.covering import MAX_STRENGTH, Universe

    strength = bought.strength + 1
    if strength > MAX_STRENGTH:
        return "every tuple is held, and no greater strength is offered"
    universe = Universe([cell.axes for cell in bench.plan.cells], strength)
    held = universe.held([step.index for step in bought.taken])
    tuples = TUPLES.get(strength, f"{strength}-tuples")
    share = held / universe.size if universe.size else 1.0
    return (
        f"more time buys nothing at strength {bought.strength}; of the {universe.size} feasible {tuples} "
        f"these cells hold {held} ({share:.1%}): the rest is what --strength {strength} would buy"
    )
