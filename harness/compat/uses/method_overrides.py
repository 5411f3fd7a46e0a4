"""Methods of a base class that a subclass in another package redefines, or has to define."""

from __future__ import annotations

import ast

from harness.compat.surface.api_surface import ApiDefinition, ApiSurface, Presence
from harness.compat.surface.call_signature import CallArguments, CallSignature
from harness.compat.surface.module_names import decorators, flat_statements


def override_problem(
    name: str,
    override: CallSignature,
    now: ApiDefinition | None,
    then: ApiDefinition | None,
    surface: ApiSurface,
) -> str:
    """Why an override that fits the base class it was written for does not fit the current one, or "".

    then: the method of the base class in the version that the override was written for. Without it nothing is
    reported, because overrides may differ from the base class on purpose.
    now: the current method of the base class; None when it has been removed. Only calls that its own package
    makes count.
    """
    if then is None or not _signatures(then) or all(override.problem(c) for c in _shapes(_signatures(then))):
        return ""
    if now is None:
        return f"overrides {name}, which the base class no longer has, so nothing calls it"
    base = _signatures(now)
    if not base or not any(override.problem(call) for call in _shapes(base)):
        return ""
    for place, call in surface.calls_of(name):
        problem = override.problem(call) if call.keywords or call.positional else ""
        fits_then = any(not signature.problem(call) for signature in _signatures(then))
        if problem and not fits_then and not all(signature.problem(call) for signature in base):
            return f"{name}{override} {problem}, as {place} calls it"
    return ""


def _signatures(definition: ApiDefinition) -> tuple[CallSignature, ...]:
    """The signatures of the bound method; empty when they are not known."""
    marks = decorators(definition.node) if isinstance(definition.node, ast.FunctionDef) else set()
    return tuple(s if "staticmethod" in marks else s.bound() for s in definition.signatures)


def _shapes(signatures: tuple[CallSignature, ...]) -> list[CallArguments]:
    """The calls with the most and with the fewest arguments that the signatures allow."""
    shapes = []
    for base in signatures:
        places = (*base.positional_only, *base.positional)
        least = sum(name in base.needed for name in places)
        needed = tuple(name for name in base.keyword_only if name in base.needed)
        shapes.append(CallArguments(positional=len(places), keywords=base.keyword_only))
        shapes.append(CallArguments(positional=least, keywords=needed))
    return shapes


def missing_abstract_methods(
    definition: ApiDefinition, defines: frozenset[str], surface: ApiSurface
) -> list[str]:
    """The abstract methods of `definition` that a subclass with the names `defines` does not define.

    Also empty when a base class cannot be read.
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
        one.name
        for one in flat_statements(node.body)
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and "abstractmethod" in decorators(one)
    }
    for base in node.bases:
        parent = surface.base(definition.module, ast.unparse(base).partition("[")[0])
        found |= _abstract(parent, surface, depth + 1) if parent else set()
    return found


def _is_abstract(definition: ApiDefinition, name: str, surface: ApiSurface) -> bool:
    answer = surface.member(definition, name)
    if answer.presence is not Presence.FOUND or answer.definition is None:
        return False
    node = answer.definition.node
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "abstractmethod" in decorators(node)
