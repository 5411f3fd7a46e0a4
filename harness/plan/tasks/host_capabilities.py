"""Which device checks the host of a run can execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.check import Check
from harness.ledger.plan_record import Skip
from harness.matrix.model.cell import Cell
from harness.outcome import Status
from harness.plan.keys.keyring import Facet
from harness.plan.tasks.demand import card_count, resource_demand, unmet_reason


@dataclass(frozen=True, kw_only=True)
class NpuFacts:
    """The usable cards of a host: how many, their SoC family (`a2`, `a3`), and the driver's version."""

    cards: int
    soc: str
    driver: str


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The devices of a host.

    no_card: why no card can be used although the host has some; "" if it has none, or one can. arch: the
    architecture of this host, such as `aarch64`; "" if it is not known. cann_misfit: (CANN version, driver
    version) -> why they are not compatible, or "".
    nodes: the resources of each cluster node, if a cluster runs the plan instead of this host.
    elsewhere: other hosts run the plan, each cell on one that has its device.
    """

    npu: NpuFacts | None = None
    no_card: str = ""
    arch: str = ""
    cann_misfit: Callable[[str, str], str] = lambda _cann, _driver: ""
    nodes: tuple[Mapping[str, float], ...] = ()
    elsewhere: bool = False


def device_skip(cell: Cell, check: Check, host: HostFacts, facets: Mapping[str, Facet]) -> Skip | None:
    """Why this host cannot run a check of the cell that uses its device; None if it can."""
    if not check.device or cell.device != "npu" or host.elsewhere:
        return None
    values = {name: facets[name].value for name in check.facets}
    demand = resource_demand(check, values)
    if host.nodes:
        reason = unmet_reason(demand, host.nodes)
        return Skip(status=Status.NOT_RUN, reason=reason) if reason else None
    if host.npu is None:
        unusable = f"no card of this host can be used: {host.no_card}"
        return Skip(status=Status.NOT_RUN, reason=unusable if host.no_card else "no NPU on this host")
    soc = cell.axes.get("soc", "")
    if soc and soc != host.npu.soc:
        return Skip(
            status=Status.NOT_RUN,
            reason=f"the cell needs {soc}, this host has {host.npu.soc or 'an unknown SoC'}",
        )
    arch = facets["platform"].value["arch"] if "platform" in facets else ""
    if arch and host.arch and arch != host.arch:
        return Skip(status=Status.NOT_RUN, reason=f"the cell is for {arch}, this host is {host.arch}")
    cards = card_count(check, values)
    if cards > host.npu.cards:
        reason = f"the check needs {cards} cards, this host has {host.npu.cards}"
        return Skip(status=Status.NOT_RUN, reason=reason)
    if demand.nodes > 1:
        reason = (
            f"the check needs {demand.nodes} hosts with {cards} cards each at the same time, and this is "
            "one; run it on a Ray cluster of such hosts (--executor ray)"
        )
        return Skip(status=Status.NOT_RUN, reason=reason)
    misfit = host.cann_misfit(cell.axes.get("cann", ""), host.npu.driver)
    if misfit:
        return Skip(status=Status.NOT_RUN, reason=f"{misfit}; update the driver, or use an older CANN")
    return None
