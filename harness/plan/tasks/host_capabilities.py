"""Which device checks the host that runs a plan can execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.check import Check
from harness.ledger.plan_record import Skip
from harness.matrix.model.cell import Cell
from harness.outcome import Status
from harness.plan.keys.keyring import Facet
from harness.plan.tasks.demand import resource_demand, unmet_reason


@dataclass(frozen=True, kw_only=True)
class NpuFacts:
    """The usable cards of a host: how many, their SoC family (`a2`, `a3`), and the driver's version."""

    cards: int
    soc: str
    driver: str


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The devices of a host; `cann_misfit` says why a CANN version is not compatible with the driver, or "".

    nodes: the resources of each node of the cluster that runs the plan instead of this host.
    """

    npu: NpuFacts | None = None
    cann_misfit: Callable[[str, str], str] = lambda _cann, _driver: ""
    nodes: tuple[Mapping[str, float], ...] = ()


def device_skip(cell: Cell, check: Check, host: HostFacts, facets: Mapping[str, Facet]) -> Skip | None:
    """Why this host cannot run a device check of the cell, or None when it can."""
    if not check.device or cell.device != "npu":
        return None
    if host.nodes:
        values = {name: facets[name].value for name in check.facets}
        reason = unmet_reason(resource_demand(check, values), host.nodes)
        return Skip(status=Status.NOT_RUN, reason=reason) if reason else None
    if host.npu is None:
        return Skip(status=Status.NOT_RUN, reason="no NPU on this host")
    wanted = cell.axes.get("soc", "")
    if wanted and wanted != host.npu.soc:
        return Skip(status=Status.NOT_RUN, reason=f"the cell needs {wanted}, this host has {host.npu.soc}")
    misfit = host.cann_misfit(cell.axes.get("cann", ""), host.npu.driver)
    if misfit:
        return Skip(status=Status.NOT_RUN, reason=f"{misfit}; update the driver, or use an older CANN")
    return None
