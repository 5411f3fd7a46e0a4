"""Compare the API of two versions of a package: modules, names and signatures."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from harness.compat.surface.api_surface import ApiSurface
from harness.compat.surface.call_signature import CallSignature, signature_of
from harness.compat.surface.module_names import flat_statements

SKIPPED = ("tests", "testing", "conftest")


@dataclass(frozen=True, kw_only=True)
class ApiChange:
    """One difference. `breaking`: whether working code can break."""

    name: str
    text: str
    breaking: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


def api_changes(before: ApiSurface, after: ApiSurface) -> tuple[ApiChange, ...]:
    """The differences in public names, sorted by name. Modules that cannot be parsed in both are skipped."""
    old, new = set(_public(before)), set(_public(after))
    removed = sorted(old - new)
    changes = [
        ApiChange(name=module, text="module removed", breaking=True)
        for module in removed
        if module.rpartition(".")[0] not in removed
    ]
    added = sorted(new - old)
    changes += [
        ApiChange(name=module, text="module added", breaking=False)
        for module in added
        if module.rpartition(".")[0] not in added
    ]
    for module in sorted(old & new):
        if before.source(module) != after.source(module):
            changes += _module_changes(module, before, after)
    return tuple(sorted(changes, key=lambda change: change.name))


def _public(surface: ApiSurface) -> Iterator[str]:
    for module, _file in surface.files():
        if not any(part.startswith("_") or part in SKIPPED for part in module.split(".")):
            yield module


def _module_changes(module: str, before: ApiSurface, after: ApiSurface) -> Iterator[ApiChange]:
    old, new = before.names(module), after.names(module)
    if old is None or new is None:
        return
    bound = {*new.defined, *new.imported, *new.other}
    for name, nodes in old.defined.items():
        if name.startswith("_"):
            continue
        if name not in bound:
            if not new.stars and not new.dynamic:
                yield ApiChange(name=f"{module}.{name}", text="removed", breaking=True)
        elif name in new.defined:
            yield from _node_changes(f"{module}.{name}", nodes[-1], new.defined[name][-1])
    for name in sorted(new.defined):
        if not name.startswith("_") and name not in {*old.defined, *old.imported, *old.other}:
            yield ApiChange(name=f"{module}.{name}", text="added", breaking=False)


def _node_changes(name: str, old: ast.stmt, new: ast.stmt) -> Iterator[ApiChange]:
    if isinstance(old, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(new, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from signature_changes(name, signature_of(old), signature_of(new))
        return
    if not isinstance(old, ast.ClassDef) or not isinstance(new, ast.ClassDef):
        return
    new_methods = _methods(new)
    for method, node in _methods(old).items():
        if method in new_methods:
            yield from _node_changes(f"{name}.{method}", node, new_methods[method])
        elif not method.startswith("_"):
            # A base class may define it now.
            yield ApiChange(name=f"{name}.{method}", text="no longer defined here", breaking=False)


def _methods(node: ast.ClassDef) -> dict[str, ast.stmt]:
    return {
        statement.name: statement
        for statement in flat_statements(node.body)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def signature_changes(name: str, old: CallSignature, new: CallSignature) -> Iterator[ApiChange]:
    """The differences between two signatures of a function."""
    old_positional = (*old.positional_only, *old.positional)
    new_positional = (*new.positional_only, *new.positional)
    known = {*new_positional, *new.keyword_only}
    for parameter in (*old_positional, *old.keyword_only):
        if parameter not in known:
            yield ApiChange(name=name, text=f"parameter {parameter} removed", breaking=not new.var_keywords)
        elif parameter in old_positional and parameter in new.keyword_only:
            yield ApiChange(name=name, text=f"parameter {parameter} became keyword-only", breaking=True)
    for parameter in (*new_positional, *new.keyword_only):
        if parameter in new.needed and parameter not in old.needed:
            yield ApiChange(name=name, text=f"parameter {parameter} is now required", breaking=True)
        elif parameter not in (*old_positional, *old.keyword_only):
            yield ApiChange(name=name, text=f"parameter {parameter} added", breaking=False)
    common_old = [parameter for parameter in old_positional if parameter in new_positional]
    common_new = [parameter for parameter in new_positional if parameter in old_positional]
    if common_old != common_new:
        yield ApiChange(name=name, text=f"positional order is now {', '.join(new_positional)}", breaking=True)
