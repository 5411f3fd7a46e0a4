"""What the names of a scope refer to: imported names, and objects whose class is known."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from harness.compat.surface.module_names import absolute_module, class_attributes, decorators
from harness.compat.surface.syntax_walk import children, walk


@dataclass(frozen=True, kw_only=True)
class Binding:
    """What a name or expression refers to: a name in a provider, or an instance of a provider's class.

    instance: "" for the name itself; `created` for an instance that calling the class creates; `declared`
    for an instance with a type annotation, whose class may be a subclass; `inherited` for `self` in a
    subclass.
    unsure: why the name may also refer to something else, or "".
    """

    target: str
    instance: str = ""
    unsure: str = ""


def bound_names(
    body: Iterable[ast.AST], module: str, *, package: bool, known: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """The names that a scope binds, each with the dotted name that it imports.

    known: returns a dotted name of a provider unchanged, and "" for other names.
    """
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Import():
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    yield alias.asname or top, known(alias.name if alias.asname else top)
            case ast.ImportFrom():
                origin = absolute_module(module, node, package=package)
                for alias in node.names:
                    yield alias.asname or alias.name, known(f"{origin}.{alias.name}")
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, ""
            case ast.Global() | ast.Nonlocal():
                yield from ((name, "") for name in node.names)
            case ast.Name(ctx=ast.Store()):
                yield node.id, ""
            case ast.ExceptHandler(name=str(name)):
                yield name, ""
                waiting.extend(node.body)
            case _:
                # Expressions bind no names of the scope, except assignment targets.
                waiting.extend(
                    child
                    for child in children(node)
                    if not isinstance(child, ast.expr) or isinstance(getattr(child, "ctx", None), ast.Store)
                )


def assigned_once(body: Iterable[ast.stmt], counts: Mapping[str, int]) -> Iterator[tuple[str, ast.stmt]]:
    """The names of a scope that a single statement assigns, with that statement."""
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if counts.get(name) == 1:
                    yield name, node
            case ast.If() | ast.With() | ast.For() | ast.While() | ast.Try():
                for part in ("body", "orelse", "finalbody"):
                    yield from assigned_once(getattr(node, part, []), counts)


def attributes_set_in(method: ast.FunctionDef) -> dict[str, ast.Call | ast.Name]:
    """The attributes of `self` that a method sets to a call or to a plain name, with this value."""
    values: dict[str, ast.Call | ast.Name] = {}
    for statement in method.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)], value=value)
                | ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), value=value)
            ) if isinstance(value, ast.Call | ast.Name):
                values[name] = value
    return values


def assignment_counts(node: ast.ClassDef) -> Counter[str]:
    """How often a class assigns each attribute or name."""
    counts: Counter[str] = Counter()
    for inner in walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store | ast.Del):
            counts[inner.attr] += 1
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            counts[inner.id] += 1
    return counts


def concrete_names(node: ast.ClassDef) -> frozenset[str] | None:
    """The names in a class's body; None when the class is abstract, or has decorators or keywords."""
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    if node.keywords or node.decorator_list or any("abstract" in " ".join(decorators(m)) for m in methods):
        return None
    return frozenset(class_names(node))


def class_names(node: ast.ClassDef) -> set[str]:
    """The names of the methods and attributes that a class defines."""
    return class_attributes(node) | {getattr(item, "name", "") for item in node.body}


def annotated_class(annotation: ast.expr | None) -> ast.expr | None:
    """The class that an annotation names, possibly with `| None` or in quotes; None for other annotations."""
    match annotation:
        case ast.Constant(value=str(text)):
            try:
                return annotated_class(ast.parse(text, mode="eval").body)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            sides = [side for side in (left, right) if not _is_none(side)]
            return annotated_class(sides[0]) if len(sides) == 1 else None
        case ast.Subscript(value=ast.Name(id="Optional") | ast.Attribute(attr="Optional"), slice=inner):
            return annotated_class(inner)
        case ast.Name() | ast.Attribute():
            return annotation
    return None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def attribute_of(binding: Binding, parts: list[str]) -> Binding:
    """An attribute of what `binding` refers to. `parts`: the attribute names, last one first."""
    return Binding(target=".".join([binding.target, *reversed(parts)]), instance=binding.instance)


def may_be_class(binding: Binding | None) -> TypeGuard[Binding]:
    """Whether a binding can be a class. Whether it is one can be seen only in the provider's sources."""
    return binding is not None and not binding.instance and not binding.unsure and "." in binding.target


def all_parameters(arguments: ast.arguments) -> list[ast.arg]:
    """All parameters of a function."""
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [*named, *filter(None, (arguments.vararg, arguments.kwarg))]


def super_method_name(function: ast.expr) -> str:
    """The method name in `super().method`, or ""."""
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Call):
        return ""
    called = function.value.func
    return function.attr if isinstance(called, ast.Name) and called.id == "super" else ""
