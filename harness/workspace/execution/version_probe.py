"""Finds the newest working version: stored outcomes of matching cells, and probes that run missing checks."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from harness.errors import InputError, InterruptedRunError, did_you_mean
from harness.ledger.plan_record import PlanEntry
from harness.matrix.model.constraints import Condition
from harness.matrix.model.versions import parse_specifier
from harness.matrix.version_matrix import Matrix
from harness.outcome import Tier
from harness.plan.feasibility.exclusion import meets_conditions
from harness.plan.feasibility.newest_versions import (
    CellProof,
    CheckProof,
    NewestVersions,
    newest_versions,
    next_probe,
)
from harness.settings import Settings
from harness.workspace.execution.rerun_tasks import rerun_tasks
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.open_plan import PlanContext, open_plan
from harness.workspace.planning.plan_history import PlanHistory, read_history

LOGGER = logging.getLogger(__name__)


_CONDITION = re.compile(r"\s*(?P<axis>[a-z_][a-z0-9_]*)\s*(?P<specifier>[<>=!].*)")


def probe_versions(
    settings: Settings, matrix: Matrix, axis: str, conditions: tuple[Condition, ...], most: str
) -> tuple[PlanContext, NewestVersions]:
    """Run missing checks until the newest working version is known; returns the plan and the versions."""
    tried: set[str] = set()
    while True:
        context, proofs = known_proofs(settings, matrix, conditions)
        found = newest_versions(matrix, axis, conditions, proofs)
        keys = next_probe(context.plan.entries, found, Tier(most), tried)
        if not keys:
            return context, found
        tried.update(keys)
        candidate = found.candidate
        version = candidate.version.short if candidate else ""
        checks = ", ".join(sorted({context.plan.tasks[key].check.name for key in keys}))
        LOGGER.info("probing %s %s: %s", axis, version, checks)
        with open_ledger(settings) as ledger:
            if rerun_tasks(context, ledger, keys):
                raise InterruptedRunError(
                    "the probe was interrupted", fix="run the same command again to continue"
                )


def parse_conditions(matrix: Matrix, given: tuple[str, ...]) -> tuple[Condition, ...]:
    """Parse the conditions of `--with AXIS=VALUE`; InputError for an invalid one."""
    conditions = []
    for text in given:
        match = _CONDITION.fullmatch(text)
        if not match:
            raise InputError(f"{text!r} is not a condition", fix="write AXIS=VALUE, or AXIS>=VALUE")
        axis, specifier = match["axis"], match["specifier"]
        if axis not in matrix.axes:
            raise InputError(f"unknown axis {axis!r}", fix=did_you_mean(axis, matrix.axes))
        words = specifier[1:] if specifier[0] == "=" and specifier[:2] != "==" else specifier
        try:
            parsed = parse_specifier(matrix.axes[axis].scheme, words)
        except ValueError as error:
            raise InputError(f"{text!r} is not a condition", why=str(error)) from None
        conditions.append(Condition(axis=axis, specifiers=(parsed,)))
    return tuple(conditions)


def known_proofs(
    settings: Settings, matrix: Matrix, conditions: tuple[Condition, ...]
) -> tuple[PlanContext, Mapping[str, CellProof]]:
    """The stored verdicts of every cell of any profile that meets the conditions."""
    context = open_plan(settings, choose=lambda matrix: matrix.all_cells)
    known = read_history(context)
    checks: dict[str, list[CheckProof]] = {}
    for entry in context.plan.entries:
        checks.setdefault(entry.cell_id, []).append(_check_proof(entry, known))
    return context, {
        cell.id: CellProof(cell=cell, checks=tuple(checks[cell.id]))
        for cell in matrix.all_cells
        if meets_conditions(matrix, cell, conditions)
    }


def _check_proof(entry: PlanEntry, known: PlanHistory) -> CheckProof:
    if entry.skip:
        return CheckProof(check=entry.check, not_run=entry.skip.reason)
    judgement = known.judgements.get(entry.key)
    if judgement is None:
        return CheckProof(check=entry.check, not_run="not run yet")
    return CheckProof(
        check=entry.check,
        status=judgement.status,
        evidence=known.outcomes[entry.key].evidence,
        reasons=judgement.reasons,
    )


def profile_of_cell(matrix: Matrix, cell_id: str) -> str:
    """The first profile that selects the cell, else `default`."""
    return next(
        (name for name in matrix.profiles if any(cell.id == cell_id for cell in matrix.cells(name))),
        "default",
    )
