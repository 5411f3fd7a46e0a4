"""There are no circular imports between modules or sub-packages, and each sub-package has a layer."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import tomllib

REPOSITORY = Path(__file__).parents[3]
PACKAGE = REPOSITORY / "harness"

Graph = Mapping[str, set[str]]


def modules() -> dict[str, Path]:
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(REPOSITORY).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(tree: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    """Modules that are imported when the code runs, also inside functions; `if TYPE_CHECKING` is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield module if module in known else node.module
        yield from imports(node, known)


@pytest.fixture(scope="module")
def graph() -> Graph:
    known = modules()
    return {
        name: {other for other in imports(ast.parse(file.read_bytes()), known) if other in known} - {name}
        for name, file in known.items()
    }


def circles(graph: Graph) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def children(graph: Graph, package: str) -> Graph:
    """The import graph between the direct modules and sub-packages of a package."""

    def child(module: str) -> str:
        head, dot, rest = module.partition(f"{package}.")
        return f"{package}.{rest.partition('.')[0]}" if dot and not head else ""

    found: dict[str, set[str]] = defaultdict(set)
    for module, others in graph.items():
        if own := child(module):
            found[own] |= {other for name in others if (other := child(name)) and other != own}
    return found


def packages() -> list[str]:
    return sorted(name for name, file in modules().items() if file.name == "__init__.py")


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    graph = {"p.x.one": {"p.y.two"}, "p.y.three": {"p.x.four"}, "p.y.two": set(), "p.x.four": set()}
    assert circles(graph) == []
    assert circles(children(graph, "p")) == [["p.x", "p.y"]]


def test_no_modules_import_each_other(graph: Graph):
    assert circles(graph) == []


@pytest.mark.parametrize("package", packages())
def test_no_sub_packages_import_each_other(graph: Graph, package: str):
    assert circles(children(graph, package)) == []


def test_every_sub_package_has_a_layer():
    """A new sub-package must be added to a layer in pyproject.toml, unless it has no siblings."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    layered = {
        f"{container}.{name.strip()}" if container else name.strip()
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
        for container in contract.get("containers", [""])
        for layer in contract["layers"]
        for name in layer.split("|")
    }
    siblings = defaultdict(list)
    for name in packages():
        siblings[name.rpartition(".")[0]].append(name)
    missing = [name for group in siblings.values() if len(group) > 1 for name in group if name not in layered]
    assert missing == []
