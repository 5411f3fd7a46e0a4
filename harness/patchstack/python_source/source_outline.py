"""The definitions in a Python source: its classes, functions, methods and attributes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from harness.sources.python_syntax import parse_source

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While)


@dataclass(frozen=True, kw_only=True)
class SourceDefinition:
    """One name that a module or class binds.

    owner: the class that contains it, "" for the module.
    kind: class, function, method, attribute or module_attr.
    body: the syntax tree as text without positions, so that comments and layout do not count.
    signature: the signature of a function or method, otherwise "".
    """

    owner: str
    name: str
    kind: str
    body: str
    signature: str = ""

    @property
    def qualified(self) -> str:
        """The name with its class."""
        return f"{self.owner}.{self.name}" if self.owner else self.name


def outline(source: bytes) -> dict[str, SourceDefinition] | None:
    """Every definition by qualified name; None if this interpreter cannot parse the source.

    Definitions in `if` and `try` blocks belong to the enclosing module or class. The body of a name that is
    bound several times consists of all its bindings.
    """
    tree = parse_source(source)
    if tree is None:
        return None
    found: dict[str, SourceDefinition] = {}
    for definition in definitions(tree):
        known = found.get(definition.qualified)
        found[definition.qualified] = _joined(known, definition) if known is not None else definition
    return found


def definitions(module: ast.Module) -> Iterator[SourceDefinition]:
    """Every binding of a parsed module, in order; a name that is bound twice occurs twice."""
    return _in_body(module.body, "")


def _joined(first: SourceDefinition, second: SourceDefinition) -> SourceDefinition:
    return replace(second, body=first.body + second.body, signature=second.signature or first.signature)


def _in_body(body: Iterable[ast.stmt], owner: str) -> Iterator[SourceDefinition]:
    attribute = "attribute" if owner else "module_attr"
    for statement in body:
        if isinstance(statement, _FUNCTIONS):
            kind = "method" if owner else "function"
            yield SourceDefinition(
                owner=owner,
                name=statement.name,
                kind=kind,
                body=ast.dump(statement),
                signature=_signature(statement),
            )
        elif isinstance(statement, ast.ClassDef):
            yield from _class(statement, owner)
        elif isinstance(statement, _BLOCKS):
            for inner in (
                statement.body,
                getattr(statement, "orelse", []),
                getattr(statement, "finalbody", []),
            ):
                yield from _in_body(inner, owner)
            for handler in getattr(statement, "handlers", []):
                yield from _in_body(handler.body, owner)
        else:
            for name in _bound(statement):
                yield SourceDefinition(owner=owner, name=name, kind=attribute, body=ast.dump(statement))


def _class(statement: ast.ClassDef, owner: str) -> Iterator[SourceDefinition]:
    header = ast.dump(
        ast.ClassDef(
            name=statement.name,
            bases=statement.bases,
            keywords=statement.keywords,
            body=[],
            decorator_list=statement.decorator_list,
        )
    )
    yield SourceDefinition(owner=owner, name=statement.name, kind="class", body=header)
    qualified = f"{owner}.{statement.name}" if owner else statement.name
    yield from _in_body(statement.body, qualified)


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    prefix = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    return f"{prefix}({ast.unparse(function.args)}){returns}"


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.split(".")[0]
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
