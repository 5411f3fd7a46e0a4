"""The names that a Python module binds, read from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.compat.surface.module_getattr import computes_known_names
from harness.compat.surface.syntax_walk import children, walk

# Functions with which a module can define names at run time.
NAMESPACE_FUNCTIONS = frozenset({"globals", "vars", "locals", "exec"})


@dataclass
class ModuleNames:
    """The names that a module binds.

    defined: functions and classes. imported: name -> imports of it as (module, name). stars: modules of star
    imports. exported: `__all__`. dynamic: whether the module may define names at run time.
    """

    defined: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imported: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    other: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)
    exported: set[str] | None = None
    dynamic: bool = False

    def binds(self, name: str) -> bool:
        """Whether a statement of the module binds the name; star imports do not count."""
        return name in self.defined or name in self.imported or name in self.other


class _ModuleReader:
    """Collects the names of a module's top level, in all branches of its conditions."""

    def __init__(self, module: str, *, package: bool) -> None:
        self._module = module
        self._package = package
        self._names = ModuleNames()

    def read(self, tree: ast.Module) -> ModuleNames:
        statements = list(flat_statements(tree.body))
        for node in statements:
            self._statement(node)
        if not self._names.dynamic and "__getattr__" in self._names.defined:
            self._names.dynamic = not computes_known_names(self._names.defined["__getattr__"], statements)
        return self._names

    def _statement(self, node: ast.stmt) -> None:
        names = self._names
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.defined.setdefault(node.name, []).append(node)
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
                # `globals()["__file__"]` only reads.
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
            # `__all__` is computed at run time, so a star import may import anything.
            names.dynamic = True


def read_names(tree: ast.Module, module: str, *, package: bool) -> ModuleNames:
    """The names that a module binds. `package`: whether it is the `__init__` of a package."""
    return _ModuleReader(module, package=package).read(tree)


def absolute_module(module: str, node: ast.ImportFrom, *, package: bool) -> str:
    """The absolute name of the module that a `from` import names."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    package_parts = parts[: len(parts) - node.level + (1 if package else 0)]
    return ".".join([*package_parts, *([node.module] if node.module else [])])


def flat_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, including those in its conditions, loops and `try` blocks."""
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
    """The names that a class's body binds, and the attributes that its methods assign."""
    found: set[str] = set()
    # Local variables of methods are no attributes.
    waiting: list[tuple[ast.AST, bool]] = [(item, False) for item in node.body]
    while waiting:
        inner, is_local = waiting.pop()
        if isinstance(inner, ast.Name):
            if isinstance(inner.ctx, ast.Store) and not is_local:
                found.add(inner.id)
            continue
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found.add(inner.attr)
        elif isinstance(inner, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in inner.names}
        elif isinstance(inner, ast.Subscript) and isinstance(inner.ctx, ast.Store):
            found |= _dict_assignment(inner)
        is_local = is_local or isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        waiting += [(child, is_local) for child in children(inner)]
    return found


def _dict_assignment(node: ast.Subscript) -> set[str]:
    """The name in `something.__dict__["name"] = ...`."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="__dict__"), slice=ast.Constant(value=str(name))):
            return {name}
    return set()


def has_plain_metaclass(node: ast.ClassDef) -> bool:
    """Whether instances and attributes are made as usual: there is no metaclass but `ABCMeta`."""
    return all(
        keyword.arg == "metaclass" and dotted(keyword.value).rpartition(".")[2] == "ABCMeta"
        for keyword in node.keywords
    )


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    """The names of the decorators, without their modules."""
    return {
        dotted(item.func if isinstance(item, ast.Call) else item).rpartition(".")[2]
        for item in node.decorator_list
    }


def dotted(node: ast.expr) -> str:
    """The text of an expression like `a.b.c`, "" for other expressions."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
