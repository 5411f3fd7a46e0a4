"""The keyword arguments that a class of vLLM takes, read from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from harness.compat.lint.dry_run.followed_engine import ConfigClass
from harness.compat.lint.serving.field_types import Definition, SourceNames, last_name

MAX_FORWARDS = 4
#: Classes that others extend without another constructor; a `Struct` makes its own of the fields.
_PLAIN_BASES = ("object", "ABC", "Generic", "Struct")
_FIELDS_DECORATORS = ("dataclass", "config")


@dataclass(frozen=True, kw_only=True)
class Constructor:
    """What a class takes. owners: the class, and those that get the arguments which it passes on."""

    names: frozenset[str]
    owners: tuple[ConfigClass, ...]


def constructor(names: SourceNames, definition: Definition | None, depth: int = 0) -> Constructor | None:
    """The arguments of a class; None if it may take others than those that are found."""
    if definition is None or not isinstance(definition.node, ast.ClassDef) or depth > MAX_FORWARDS:
        return None
    ancestry = names.ancestry(definition.path, definition.node)
    classes = [(one.path, one.node) for one in ancestry if isinstance(one.node, ast.ClassDef)]
    if not all(_is_plain(names, path, node) for path, node in classes):
        return None
    owner = (definition.path, definition.node.name)
    for path, node in reversed(classes):
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                return _of_method(names, path, method, owner, depth)
    last = definition.node
    has_fields = any(last_name(one) in _FIELDS_DECORATORS for one in last.decorator_list) or any(
        last_name(base) == "Struct" for _, node in classes for base in node.bases
    )
    fields = {name for _, node in classes for name in _fields(node)}
    return Constructor(names=frozenset(fields), owners=(owner,)) if has_fields and fields else None


def _is_plain(names: SourceNames, path: str, node: ast.ClassDef) -> bool:
    """Whether nothing else than `__init__` and the fields tells what a class takes."""
    if any(one.arg == "metaclass" for one in node.keywords):
        return False
    if any(isinstance(one, ast.FunctionDef) and one.name == "__new__" for one in node.body):
        return False
    if any(last_name(one) not in (*_FIELDS_DECORATORS, "deprecated") for one in node.decorator_list):
        return False
    return all(_is_known(names, path, base) for base in node.bases)


def _is_known(names: SourceNames, path: str, base: ast.expr) -> bool:
    plain = base.value if isinstance(base, ast.Subscript) else base
    if last_name(plain) in _PLAIN_BASES:
        return True
    found = names.find(path, plain.id) if isinstance(plain, ast.Name) else None
    return found is not None and isinstance(found.node, ast.ClassDef)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id


def _of_method(
    names: SourceNames, path: str, method: ast.FunctionDef, owner: ConfigClass, depth: int
) -> Constructor | None:
    """What `__init__` takes; with `**kwargs`, what the one class takes that it passes them to."""
    arguments = method.args
    own = {one.arg for one in (*arguments.args[1:], *arguments.kwonlyargs)}
    if arguments.kwarg is None:
        return Constructor(names=frozenset(own), owners=(owner,))
    more = arguments.kwarg.arg
    calls = [node for node in ast.walk(method) if isinstance(node, ast.Call)]
    receivers = [call for call in calls if any(_passes(one, more) for one in call.keywords)]
    is_seen_whole = any(isinstance(one, ast.Name) and one.id == more for call in calls for one in call.args)
    if len(receivers) != 1 or is_seen_whole or not isinstance(receivers[0].func, ast.Name):
        return None
    inner = constructor(names, names.find(path, receivers[0].func.id), depth + 1)
    if inner is None:
        return None
    # What the method itself looks for in them, it may take out.
    texts = {
        node.value
        for node in ast.walk(method)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return Constructor(names=inner.names | own | texts, owners=(owner, *inner.owners))


def _passes(keyword: ast.keyword, name: str) -> bool:
    return keyword.arg is None and isinstance(keyword.value, ast.Name) and keyword.value.id == name
