"""First contact with real silicon: which row a host runs, and what the simulated device predicted of it.

`workspace.results.sent_ledger` writes the file.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import __version__
from harness.devices.cards.card_leases import CardLease
from harness.devices.host.host_findings import LEASES, Health, HostFinding
from harness.devices.host.host_inspection import HostReport
from harness.errors import HarnessError, NothingSelectedError
from harness.matrix.model.cell import Cell
from harness.matrix.version_matrix import Matrix
from harness.outcome import Evidence, Outcome, State, Status
from harness.run.scheduling.run_result import RunResult
from harness.settings import FOUND, Settings
from harness.verdict.verdict import judge_outcome
from harness.workspace.execution.simulated_prediction import (
    Comparison,
    compare,
    predict,
    why_without_prediction,
)
from harness.workspace.planning.found_cell import AS_FOUND
from harness.workspace.planning.open_plan import PlanContext, open_plan

#: The checks of a first contact, in the order of their worth; the checks that they need are run too.
CHECKS = ("device-sample", "collectives", "loss")


@dataclass(frozen=True, kw_only=True)
class ContactedCheck:
    """A check of the first contact: its verdict on this host, and where the simulated device was wrong.

    evidence: "" without an outcome. unpredicted: why there is no prediction, "" if there is one or none is
    made of this check.
    """

    check: str
    status: str
    evidence: str
    seconds: float
    reasons: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()
    unpredicted: str = ""


@dataclass(frozen=True, kw_only=True)
class SummarySchema:
    """Name and version of the summary."""

    name: str = "npu-matrix.first-contact"
    version: int = 1


@dataclass(frozen=True, kw_only=True)
class ContactSummary:
    """The summary in the file. host: facts without names and addresses. doctor: what `doctor` found."""

    schema: SummarySchema
    npu_matrix: str
    cell: str
    axes: Mapping[str, str]
    host: Mapping[str, str]
    doctor: tuple[HostFinding, ...]
    evidence: str
    complete: bool
    checks: tuple[ContactedCheck, ...]
    passed_over: Mapping[str, str]


def contact_cells(settings: Settings, only: Sequence[str]) -> tuple[str, ...]:
    """The cells that this host can run, the newest first.

    NothingSelectedError, with the reason of each cell, if it can run none.
    """
    if settings["engine"] == FOUND:
        # What is installed, unless it is to be compared with a row.
        only = only or (AS_FOUND,)
    offered = open_plan(settings, only=only, checks=CHECKS, choose=_npu_cells)
    refusals = _refusals(offered)
    able = [cell.id for cell in offered.plan.cells if cell.id not in refusals]
    if not able:
        raise nothing_measurable(refusals, as_found=settings["engine"] == FOUND)
    return tuple(sorted(able, key=lambda cell: _rank(offered.matrix, _cell(offered, cell)), reverse=True))


def nothing_measurable(refusals: Mapping[str, str], *, as_found: bool) -> NothingSelectedError:
    """The error for a host on which no cell can be measured. refusals: cell -> why."""
    reasons = list(dict.fromkeys(refusals.values()))
    if as_found or len(reasons) == 1:
        # No choice of a row changes that.
        return NothingSelectedError(
            "nothing can be measured on this host",
            why="; ".join(reasons),
            fix="give the host what it lacks; `npu-matrix doctor` says how",
        )
    return NothingSelectedError(
        "this host can run no row of the matrix",
        why="; ".join(f"{cell}: {why}" for cell, why in list(refusals.items())[:6]),
        fix="choose a row with --only and give the host what it lacks, add a row with the versions of "
        "this host to matrix.yaml (`npu-matrix advise` names compatible ones), or measure what is "
        "installed: `npu-matrix --engine found --found-python PYTHON first-contact`",
    )


def open_contact(settings: Settings, cell: str) -> PlanContext:
    """The plan of a first contact with this cell."""
    return open_plan(settings, only=(cell,), checks=CHECKS, choose=_npu_cells)


def why_unmeasured(context: PlanContext, result: RunResult) -> str:
    """Why the device was not reached with this cell, so that another one may reach it, or "".

    A run that was stopped, or failed for another reason than the cell, says nothing about the cell.
    """
    outcomes = result.outcomes
    reached = {one.check for one in context.plan.entries if one.key in outcomes and one.check in CHECKS}
    if reached or result.interrupted or result.errors:
        return ""
    return next((one.reason for one in result.without_outcome if one.check == CHECKS[0]), "")


def _npu_cells(matrix: Matrix) -> list[Cell]:
    return [cell for cell in matrix.all_cells if cell.device == "npu"]


def _cell(context: PlanContext, cell_id: str) -> Cell:
    return next(cell for cell in _npu_cells(context.matrix) if cell.id == cell_id)


def _refusals(context: PlanContext) -> dict[str, str]:
    """Cell -> why this host cannot run it."""
    found: dict[str, str] = {}
    engine = context.settings["engine"]
    for cell in map(lambda facts: _cell(context, facts.id), context.plan.cells):  # noqa: C417
        wanted = cell.axes.get("cann", "")
        of_host = engine in ("venv", FOUND)
        if of_host and context.host.cann and wanted and wanted != context.host.cann:
            found[cell.id] = f"it needs CANN {wanted}, this host has {context.host.cann}"
        sources = [name for name, value in cell.axes.items() if "@" in value and name != "verl"]
        if sources and engine == "venv":
            found.setdefault(cell.id, f"{', '.join(sources)} must be built from a repository in a container")
    for entry in context.plan.entries:
        if entry.skip and entry.check in ("environment", "device-sample"):
            found[entry.cell_id] = entry.skip.reason
    return found


def _rank(matrix: Matrix, cell: Cell) -> tuple[bool, list[object]]:
    """Releases first, then the newest verl and torch_npu."""
    versions = matrix.versions(cell.axes)
    released = not any("@" in value for value in cell.axes.values())
    return released, [versions[name] for name in ("verl", "torch_npu") if name in versions]


def contacted(
    context: PlanContext, result: RunResult, folder: Path, *, predicted: bool, late: str
) -> tuple[ContactedCheck, ...]:
    """The checks of the run in order, each compared with the prediction of the simulated device.

    late: said of checks that did not end because the run was stopped.
    """
    built = next(
        (one for one in result.outcomes.values() if one.check == "environment" and _completed(one)), None
    )
    reasons = {
        (one.cell_id, one.check): late if result.interrupted and one.status is Status.ERROR else one.reason
        for one in result.without_outcome
    }
    found = []
    for entry in context.plan.entries:
        outcome = result.outcomes.get(entry.key)
        if outcome is None:
            why = reasons.get((entry.cell_id, entry.check), late)
            found.append(
                ContactedCheck(check=entry.check, status="not-run", evidence="", seconds=0.0, reasons=(why,))
            )
            continue
        task = context.plan.tasks[entry.key]
        judgement = judge_outcome(task.check, outcome)
        comparisons: tuple[Comparison, ...] = ()
        unpredicted = ""
        if predicted and built is not None and entry.check in CHECKS and _completed(outcome):
            try:
                guess = predict(context.settings, task, built, folder / entry.check)
                comparisons = compare(outcome, guess)
            except HarnessError as error:
                unpredicted = why_without_prediction(error)
        found.append(
            ContactedCheck(
                check=entry.check,
                status=judgement.status.value,
                evidence=outcome.evidence.value,
                seconds=round(outcome.seconds, 1),
                reasons=judgement.reasons,
                comparisons=comparisons,
                unpredicted=unpredicted,
            )
        )
    return tuple(found)


def _completed(outcome: Outcome) -> bool:
    return outcome.state is State.COMPLETED


def time_up(minutes: int, host: HostReport, leases: Sequence[CardLease]) -> str:
    """Why a check did not end in time. leases: of the cards, after the run."""
    leased = {one.card: one.what for one in leases if one.card in host.usable_chips}
    holders = ""
    if leased and len(leased) == len(host.usable_chips):
        holders = f" while all cards were leased: {'; '.join(dict.fromkeys(leased.values()))}"
    next_time = "the same command goes on, and reuses what it has built"
    return f"the time was up (--minutes {minutes}){holders}; {next_time}"


def summary_of(
    context: PlanContext,
    checks: tuple[ContactedCheck, ...],
    findings: tuple[HostFinding, ...],
    passed_over: Mapping[str, str],
) -> ContactSummary:
    """The summary. Its evidence is the weakest of the checks that ran on the device.

    passed_over: the newer cells with which the device was not reached, and why.
    """
    (cell,) = context.plan.cells
    ranks = {one.value: number for number, one in enumerate(Evidence)}
    reached = [one.evidence for one in checks if one.check in CHECKS and one.evidence]
    return ContactSummary(
        schema=SummarySchema(),
        npu_matrix=__version__,
        cell=cell.id,
        axes=dict(cell.axes),
        host=host_facts(context.host),
        # Who leases a card now is nobody else's business.
        doctor=tuple(one for one in findings if not (one.topic == LEASES and one.health is Health.OK)),
        evidence=min(reached, key=ranks.__getitem__, default="none"),
        complete=all(one.evidence for one in checks),
        checks=checks,
        passed_over=passed_over,
    )


def host_facts(host: HostReport) -> dict[str, str]:
    """Facts about the host that explain its outcomes; none of them identifies it."""
    chips = host.npu.chips if host.npu else ()
    return {
        "soc": host.soc,
        "chips": ", ".join(sorted({chip.name for chip in chips})),
        "usable": str(len(host.usable_chips)),
        "driver": host.driver,
        "cann": host.cann,
        "machine": platform.machine(),
        "cpus": str(host.cpus),
        "system": platform.platform(),
        "python": platform.python_version(),
        "engines": ", ".join(host.container_engines),
    }
