"""The names a Python module binds, read from its text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.compat.surface.syntax_walk import walk

# What a module can make names with that are not written in it.
NAMESPACE_FUNCTIONS = frozenset({"globals", "vars", "locals", "exec"})


@dataclass
class ModuleNames:
    """The names a module's own text binds: definitions, imports as (module, name), and star imports."""

    defined: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imported: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    other: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)
    exported: set[str] | None = None
    dynamic: bool = False


class _ModuleReader:
    """Collects what a module's top level binds, in every branch of its conditions."""

    def __init__(self, module: str, *, package: bool) -> None:
        self._module = module
        self._package = package
        self._names = ModuleNames()

    def read(self, tree: ast.Module) -> ModuleNames:
        for node in flat_statements(tree.body):
            self._statement(node)
        return self._names

    def _statement(self, node: ast.stmt) -> None:
        names = self._names
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.defined.setdefault(node.name, []).append(node)
                names.dynamic = names.dynamic or node.name == "__getattr__"
            case ast.Import():
                for alias in node.names:
                    target = alias.name if alias.asname else alias.name.partition(".")[0]
                    names.imported.setdefault(alias.asname or target, []).append((target, ""))
            case ast.ImportFrom():
                origin = absolute_module(self._module, node, package=self._package)
                for alias in node.names:
                    if alias.name == "*":
                        names.stars.append(origin)
                    else:
                        names.imported.setdefault(alias.asname or alias.name, []).append((origin, alias.name))
            case _:
                self._other(node)

    def _other(self, node: ast.stmt) -> None:
        names = self._names
        read = set()
        for inner in walk(node):
            if isinstance(inner, ast.Subscript) and isinstance(inner.ctx, ast.Load):
                # `globals()["__file__"]` only looks.
                read |= {id(inner.value.func)} if isinstance(inner.value, ast.Call) else set()
            elif isinstance(inner, ast.Name):
                if isinstance(inner.ctx, ast.Store):
                    names.other.add(inner.id)
                names.dynamic = names.dynamic or (inner.id in NAMESPACE_FUNCTIONS and id(inner) not in read)
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == "__all__" and value is not None:
            self._export(value)
        elif isinstance(value, ast.Call) and dotted(value.func) in ("__all__.extend", "__all__.append"):
            for argument in value.args:
                self._export(argument)

    def _export(self, value: ast.expr) -> None:
        names = self._names
        try:
            found = ast.literal_eval(value)
            found = [found] if isinstance(found, str) else found
            names.exported = (names.exported or set()) | {str(name) for name in found}
        except (ValueError, TypeError, RecursionError):
            # Put together at run time: then star imports may bring anything.
            names.dynamic = True


def read_names(tree: ast.Module, module: str, *, package: bool) -> ModuleNames:
    """What the module called `module` binds; `package`: it is the `__init__` of one."""
    return _ModuleReader(module, package=package).read(tree)


def absolute_module(module: str, node: ast.ImportFrom, *, package: bool) -> str:
    """The module an import takes from, relative ones resolved."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + (1 if package else 0)]
    return ".".join([*kept, *([node.module] if node.module else [])])


def flat_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, of all branches of its conditions too."""
    for node in body:
        match node:
            case ast.If() | ast.For() | ast.While() | ast.AsyncFor():
                yield from flat_statements([*node.body, *node.orelse])
                if isinstance(node, ast.For | ast.AsyncFor):
                    yield ast.Expr(value=node.target)
            case ast.Try() | ast.TryStar():
                handlers = [inner for handler in node.handlers for inner in handler.body]
                yield from flat_statements([*node.body, *handlers, *node.orelse, *node.finalbody])
            case ast.With() | ast.AsyncWith():
                yield from (ast.Expr(value=item.optional_vars) for item in node.items if item.optional_vars)
                yield from flat_statements(node.body)
            case _:
                yield node


def class_attributes(node: ast.ClassDef) -> set[str]:
    """Names a class's body binds, and attributes its methods set on `self` or `cls`."""
    found = set()
    for inner in walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            found.add(inner.id)
        elif isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found.add(inner.attr)
        elif isinstance(inner, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in inner.names}
        elif isinstance(inner, ast.Subscript) and isinstance(inner.ctx, ast.Store):
            found |= _kept_in_dict(inner)
    return found


def _kept_in_dict(node: ast.Subscript) -> set[str]:
    """The name that `something.__dict__["name"] = ...` gives the object."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="__dict__"), slice=ast.Constant(value=str(name))):
            return {name}
    return set()


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    """The last names of its decorators."""
    return {
        dotted(one.func if isinstance(one, ast.Call) else one).rpartition(".")[2]
        for one in node.decorator_list
    }


def dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written, or "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
