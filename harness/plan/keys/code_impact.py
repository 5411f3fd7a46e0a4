"""Counts, for each package of this project, how many checks must run again after a change of its code."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.check import Check
from harness.code_graph.reachable_code import DATA, DEFINITION, WHOLE, CodeGraph
from harness.plan.keys.code_digests import check_nodes, simulator_nodes


@dataclass(frozen=True, kw_only=True)
class PackageImpact:
    """The size of a package, and how many checks are run again after a change of a definition or a module.

    Here a change of a module means a change of a statement that runs on import, the change with the largest
    effect. in_no_key: definitions that no check can reach.
    definition_median, module_median: over all definitions or modules, including those in no key.
    definition_most, module_most: for the definition or module that most checks can reach.
    """

    package: str
    modules: int
    definitions: int
    in_no_key: int
    definition_median: float
    definition_most: int
    module_median: float
    module_most: int


def code_impact(checks: Iterable[Check], graph: CodeGraph | None = None) -> tuple[PackageImpact, ...]:
    """One row for each package, in alphabetical order. A change of code that the simulated device reaches
    counts
    for all checks that read the facet `device`."""
    graph = graph or CodeGraph()
    checks = tuple(checks)
    nodes = dict(check_nodes(graph, checks))
    simulated = simulator_nodes(graph)
    for check in checks:
        if "device" in check.facets:
            nodes[check.name] = nodes[check.name] | simulated
    by_definition: dict[tuple[str, str], set[str]] = {}
    by_module: dict[str, set[str]] = {}
    for name, found in nodes.items():
        for kind, location, definition in found:
            if kind in {DATA, WHOLE}:
                continue
            by_module.setdefault(location, set()).add(name)
            if kind == DEFINITION:
                by_definition.setdefault((location, definition), set()).add(name)
    return tuple(
        _row(package, modules, graph, by_definition, by_module)
        for package, modules in sorted(_packages(graph.modules()).items())
    )


def _packages(modules: Iterable[str]) -> Mapping[str, list[str]]:
    packages: dict[str, list[str]] = {}
    for module in modules:
        parts = module.split(".")
        packages.setdefault(parts[1] if len(parts) > 2 else "(top level)", []).append(module)
    return packages


def _row(
    package: str,
    modules: list[str],
    graph: CodeGraph,
    by_definition: Mapping[tuple[str, str], set[str]],
    by_module: Mapping[str, set[str]],
) -> PackageImpact:
    names = [(module, name) for module in modules for name in _definitions(graph, module)]
    definitions = [len(by_definition.get(one, ())) for one in names]
    imports = [len(by_module.get(module, ())) for module in modules]
    return PackageImpact(
        package=package,
        modules=len(modules),
        definitions=len(names),
        in_no_key=sum(not count for count in definitions),
        definition_median=statistics.median(definitions or [0]),
        definition_most=max(definitions, default=0),
        module_median=statistics.median(imports),
        module_most=max(imports),
    )


def _definitions(graph: CodeGraph, module: str) -> Iterable[str]:
    facts = graph.facts(module)
    return facts.definitions if facts else ()
