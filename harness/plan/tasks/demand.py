"""What a task asks of the machines it runs on, in the terms of a cluster's resources.

Nodes advertise `CPU` and `NPU` (Ray counts both itself) and, as markers, `soc:a2`, `cann:8.5.0` and
`arch:aarch64`; `npu-matrix doctor --resources` prints what to start a node with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.check import Check
from harness.devices.host.soc import soc_family
from harness.outcome import Tier

# A marker is there or not: any share of it will do, and the smallest that Ray counts lets all tasks have one.
MARKER = 0.0001


@dataclass(frozen=True, kw_only=True)
class Demand:
    """`nodes` machines with `resources` on each of them."""

    resources: Mapping[str, float]
    nodes: int = 1

    def __str__(self) -> str:
        wanted = ", ".join(
            name if amount == MARKER else f"{amount:g} {name}"
            for name, amount in sorted(self.resources.items())
        )
        return wanted if self.nodes == 1 else f"{self.nodes} nodes with {wanted} each"


def resource_demand(check: Check, facets: Mapping[str, Any]) -> Demand:
    """What a task of the check asks for: a CPU, and with a device the cards, CANN and machine of its cell.

    A cell's recipe says how many nodes and cards; checks that do not read it run on one card.
    """
    resources = {"CPU": 1.0}
    device = facets.get("device") or {}
    if device.get("kind") != "npu" or not check.device:
        if check.tier is not Tier.STATIC and (facets.get("platform") or {}).get("host"):
            resources[f"arch:{facets['platform']['arch']}"] = MARKER
        return Demand(resources=resources)
    recipe = facets.get("recipe") or {}
    resources["NPU"] = float(recipe.get("cards", device.get("count", 1)))
    family = soc_family(str(device.get("soc", "")))
    if family:
        resources[f"soc:{family}"] = MARKER
    if device.get("cann"):
        resources[f"cann:{device['cann']}"] = MARKER
    return Demand(resources=resources, nodes=int(recipe.get("nodes", 1)))


def unmet_reason(demand: Demand, nodes: Sequence[Mapping[str, float]]) -> str:
    """Why no machines among `nodes` (what each has in all) can ever meet the demand, or ""."""
    wanted = applicable_demand(demand, nodes).resources
    fitting = [node for node in nodes if _lacking(wanted, [node]) == []]
    if len(fitting) >= demand.nodes:
        return ""
    lacking = _lacking(wanted, nodes)
    what = f"no node has {', '.join(lacking)}" if lacking else f"{len(fitting)} of {len(nodes)} nodes fit"
    return f"the cluster cannot give {demand}: {what}"


def applicable_demand(demand: Demand, nodes: Sequence[Mapping[str, float]]) -> Demand:
    """The demand without an `arch:` marker where no node advertises one: there all are taken to be alike."""
    if any(name.startswith("arch:") for node in nodes for name in node):
        return demand
    resources = {name: amount for name, amount in demand.resources.items() if not name.startswith("arch:")}
    return Demand(resources=resources, nodes=demand.nodes)


def _lacking(wanted: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> list[str]:
    return sorted(
        name for name, amount in wanted.items() if all(node.get(name, 0.0) < amount for node in nodes)
    )
