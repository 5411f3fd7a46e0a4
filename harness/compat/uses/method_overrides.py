"""Methods of a base class that a subclass in another package redefines, or has to define."""

from __future__ import annotations

import ast

from harness.compat.surface.api_surface import ApiDefinition, ApiSurface, Presence
from harness.compat.surface.call_signature import CallArguments, CallSignature
from harness.compat.surface.module_names import decorators, flat_statements


def override_problem(
    name: str,
    override: CallSignature,
    current: ApiDefinition | None,
    original: ApiDefinition | None,
    surface: ApiSurface,
) -> str:
    """Why an override that fits the base class it was written for does not fit the current one, or "".

    current: the method of the base class in the cell's version; None when it has been removed. Only calls in
    the package of the base class are considered.
    original: the method in the version that the override was written for. Without it nothing is reported,
    because overrides may differ from the base class on purpose.
    """
    expected = _signatures(original) if original else ()
    if not expected or all(override.problem(call) for call in _extreme_calls(expected)):
        return ""
    if current is None:
        return f"overrides {name}, which the base class no longer has, so nothing calls it"
    base = _signatures(current)
    if not base or not any(override.problem(call) for call in _extreme_calls(base)):
        return ""
    for place, call in surface.calls_of(name):
        problem = override.problem(call) if call.keywords or call.positional else ""
        fits_original = any(not signature.problem(call) for signature in expected)
        if problem and not fits_original and not all(signature.problem(call) for signature in base):
            return f"{name}{override} {problem}, as {place} calls it"
    return ""


def _signatures(definition: ApiDefinition) -> tuple[CallSignature, ...]:
    """The possible signatures of the bound method; empty when they are not known."""
    marks = decorators(definition.node) if isinstance(definition.node, ast.FunctionDef) else set()
    return tuple(s if "staticmethod" in marks else s.bound() for s in definition.signatures)


def _extreme_calls(signatures: tuple[CallSignature, ...]) -> list[CallArguments]:
    """The calls with the most and with the fewest arguments that the signatures allow."""
    shapes = []
    for base in signatures:
        positional = (*base.positional_only, *base.positional)
        least = sum(name in base.needed for name in positional)
        needed = tuple(name for name in base.keyword_only if name in base.needed)
        shapes.append(CallArguments(positional=len(positional), keywords=base.keyword_only))
        shapes.append(CallArguments(positional=least, keywords=needed))
    return shapes


def missing_abstract_methods(
    definition: ApiDefinition, defines: frozenset[str], surface: ApiSurface
) -> list[str]:
    """The abstract methods of a class that a subclass with the names `defines` does not define.

    Empty when a base class cannot be read.
    """
    return sorted(
        name
        for name in _abstract(definition, surface, 0)
        if name not in defines and _is_abstract(definition, name, surface)
    )


def _abstract(definition: ApiDefinition, surface: ApiSurface, depth: int) -> set[str]:
    node = definition.node
    if not isinstance(node, ast.ClassDef) or depth > 20:
        return set()
    found = {
        item.name
        for item in flat_statements(node.body)
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and "abstractmethod" in decorators(item)
    }
    for base in node.bases:
        parent = surface.base(definition.module, ast.unparse(base).partition("[")[0])
        found |= _abstract(parent, surface, depth + 1) if parent else set()
    return found


def _is_abstract(definition: ApiDefinition, name: str, surface: ApiSurface) -> bool:
    lookup = surface.member(definition, name)
    if lookup.presence is not Presence.FOUND or lookup.definition is None:
        return False
    node = lookup.definition.node
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "abstractmethod" in decorators(node)
