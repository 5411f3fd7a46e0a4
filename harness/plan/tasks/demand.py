"""The cluster resources that a task requires.

Nodes offer `CPU` and `NPU`, which Ray counts itself, and markers such as `soc:a2`, `cann:8.5.0` and
`arch:aarch64`. `npu-matrix doctor --resources` prints the resources to start a node with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.check import Check
from harness.devices.host.soc import soc_family
from harness.outcome import Tier
from harness.settings import FOUND

# A node has a marker or not. Each task takes the smallest amount that Ray can count, so that any number of
# tasks can share it.
MARKER = 0.0001
#: Nodes without a resource of which a reason says so.
SHOWN_NODES = 4


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A number of nodes, each with these resources."""

    resources: Mapping[str, float]
    nodes: int = 1

    def __hash__(self) -> int:
        return hash((frozenset(self.resources.items()), self.nodes))

    def __str__(self) -> str:
        resources = ", ".join(
            name if amount == MARKER else f"{amount:g} {name}"
            for name, amount in sorted(self.resources.items())
        )
        return resources if self.nodes == 1 else f"{self.nodes} nodes with {resources} each"


def resource_demand(check: Check, facets: Mapping[str, Any]) -> Demand:
    """The resources of a task: one CPU, and for a check on NPUs the cards, CANN version and SoC of its cell.

    The CANN version is none of them if the cell is a container. The cards are none of them if the check does
    not hold them from start to end, and the SoC shows that a node has cards.
    A check with `each_host` runs on all nodes of the recipe.
    """
    resources = {"CPU": 1.0}
    device = facets.get("device") or {}
    count = card_count(check, facets)
    if not count:
        if check.tier is not Tier.STATIC and (facets.get("platform") or {}).get("host"):
            resources[f"arch:{facets['platform']['arch']}"] = MARKER
        return Demand(resources=resources)
    recipe = facets.get("recipe") or {}
    family = soc_family(str(device.get("soc", "")))
    if check.holds_cards or not family:
        resources["NPU"] = float(count)
    if family:
        resources[f"soc:{family}"] = MARKER
    # A container has the CANN of its image.
    if device.get("cann") and device.get("engine", FOUND) == FOUND:
        resources[f"cann:{device['cann']}"] = MARKER
    return Demand(resources=resources, nodes=int(recipe.get("nodes", 1)) if check.each_host else 1)


def card_count(check: Check, facets: Mapping[str, Any]) -> int:
    """How many cards of a node the task uses; 0 if it does not run on NPUs.

    The recipe of the cell states the number of cards of a node. Checks that do not read it run on one card,
    or on as many as their parameter `cards` says.
    """
    device = facets.get("device") or {}
    if device.get("kind") != "npu" or not check.device:
        return 0
    recipe = facets.get("recipe") or {}
    return int(recipe.get("cards", check.params.get("cards", device.get("count", 1))))


def unmet_reason(demand: Demand, nodes: Sequence[Mapping[str, float]]) -> str:
    """Why the cluster can never meet the demand, or "". nodes: the total resources of each node."""
    required = applicable_demand(demand, nodes).resources
    fitting = [node for node in nodes if not _lacking(required, [node])]
    if len(fitting) >= demand.nodes:
        return ""
    lacking = _lacking(required, nodes)
    if lacking:
        return f"the cluster cannot provide {demand}: no node has {', '.join(lacking)}"
    others = [
        f"{_address(node)} lacks {', '.join(missing)}"
        for node in nodes
        if (missing := _lacking(required, [node]))
    ]
    shown = "; ".join((f"{len(fitting)} of {len(nodes)} nodes fit", *others[:SHOWN_NODES]))
    return f"the cluster cannot provide {demand}: {shown}"


def capacity(demand: Demand, nodes: Sequence[Mapping[str, float]]) -> int:
    """How many tasks with this demand the nodes can run at a time."""
    fitting = [
        int(min(node.get(name, 0.0) / amount for name, amount in demand.resources.items() if amount))
        for node in nodes
    ]
    return sum(fitting) // demand.nodes


def applicable_demand(demand: Demand, nodes: Sequence[Mapping[str, float]]) -> Demand:
    """The demand without its `arch:` marker if no node offers one: then all nodes count as the same
    machine."""
    if any(name.startswith("arch:") for node in nodes for name in node):
        return demand
    resources = {name: amount for name, amount in demand.resources.items() if not name.startswith("arch:")}
    return Demand(resources=resources, nodes=demand.nodes)


def _address(node: Mapping[str, float]) -> str:
    """The address of a node, which Ray counts among its resources."""
    names = (name.removeprefix("node:") for name in node if name.startswith("node:"))
    return next((f"the node {name}" for name in names if not name.startswith("__")), "a node")


def _lacking(required: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> list[str]:
    """The resources that no node has enough of."""
    return sorted(
        name for name, amount in required.items() if all(node.get(name, 0.0) < amount for node in nodes)
    )
