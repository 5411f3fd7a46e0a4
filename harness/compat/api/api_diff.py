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
    methods = {
        one.name: one
        for one in flat_statements(new.body)
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for one in flat_statements(old.body):
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if one.name in methods:
            yield from _node_changes(f"{name}.{one.name}", one, methods[one.name])
        elif not one.name.startswith("_"):
            # A base class may define it now.
            yield ApiChange(name=f"{name}.{one.name}", text="no longer defined here", breaking=False)


def signature_changes(name: str, old: CallSignature, new: CallSignature) -> Iterator[ApiChange]:
    """The differences between two signatures of a function."""
    places_old = (*old.positional_only, *old.positional)
    places_new = (*new.positional_only, *new.positional)
    known = {*places_new, *new.keyword_only}
    for parameter in (*places_old, *old.keyword_only):
        if parameter not in known:
            yield ApiChange(name=name, text=f"parameter {parameter} removed", breaking=not new.var_keywords)
        elif parameter in places_old and parameter in new.keyword_only:
            yield ApiChange(name=name, text=f"parameter {parameter} became keyword-only", breaking=True)
    for parameter in (*places_new, *new.keyword_only):
        if parameter in new.needed and parameter not in old.needed:
            yield ApiChange(name=name, text=f"parameter {parameter} is now required", breaking=True)
        elif parameter not in (*places_old, *old.keyword_only):
            yield ApiChange(name=name, text=f"parameter {parameter} added", breaking=False)
    kept_old = [parameter for parameter in places_old if parameter in places_new]
    kept_new = [parameter for parameter in places_new if parameter in places_old]
    if kept_old != kept_new:
        yield ApiChange(name=name, text=f"positional order is now {', '.join(places_new)}", breaking=True)
