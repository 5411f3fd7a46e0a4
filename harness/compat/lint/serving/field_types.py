"""What vLLM's parser makes of the annotation of a field: the types of a field, read from its source.

`EngineArgs` and the arguments of the server are declared by dataclasses; vLLM computes from the annotation of
each field how its option is parsed (`get_kwargs`). An annotation that is not understood is open: any text is
a value of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias, TypeGuard

from harness.compat.lint.module_files import ModuleSources

MAX_DEPTH = 12
_BUILTIN = ("bool", "int", "float", "str", "dict", "list", "tuple", "set", "type", "bytes", "object")
_WRAPPERS = ("Annotated", "SkipValidation", "Required", "Final")
_UNIONS = ("Union", "Optional")
LiteralValue: TypeAlias = "str | int | float | bool | None"


@dataclass(frozen=True)
class Definition:
    """What a name stands for in a module; node: a class, a function or the value of an assignment."""

    path: str
    node: ast.AST


@dataclass(frozen=True, kw_only=True)
class FieldType:
    """One of the types of a field.

    kind: its builtin type, `None`, `literal`, `dataclass`, `class` for any other class, or `open`. texts: of
    a literal. of: the types of the elements of a collection; size: of a tuple, 0 for any.
    """

    kind: str
    texts: tuple[LiteralValue, ...] = ()
    of: tuple[FieldType, ...] = ()
    size: int = 0
    definition: Definition | None = None


@dataclass
class SourceNames:
    """Finds the classes, functions and types that names in vLLM's modules stand for."""

    sources: ModuleSources
    _names: dict[str, dict[str, ast.AST]] = field(default_factory=dict)

    def find(self, path: str, name: str, depth: int = 0) -> Definition | None:
        """What a name in a module stands for; None if it is not defined in these modules."""
        node = self._module_names(path).get(name)
        if isinstance(node, ast.ImportFrom) and depth < MAX_DEPTH:
            original = next(one.name for one in node.names if (one.asname or one.name) == name)
            target = self._imported(path, node)
            return self.find(target, original, depth + 1) if target else None
        if isinstance(node, ast.Name) and depth < MAX_DEPTH:
            return self.find(path, node.id, depth + 1)
        return Definition(path, node) if node is not None else None

    def _imported(self, path: str, node: ast.ImportFrom) -> str:
        package = path.removesuffix(".py").removesuffix("/__init__").split("/")
        if node.level:
            is_package = path.endswith("/__init__.py")
            base = package[: len(package) - node.level + is_package]
            return self.sources.files.path_of(".".join([*base, *filter(None, [node.module])]))
        return self.sources.files.path_of(node.module or "")

    def _module_names(self, path: str) -> dict[str, ast.AST]:
        if path not in self._names:
            module = self.sources.syntax_tree(path)
            names: dict[str, ast.AST] = {}
            if module is not None:
                # Names that a function imports for itself are found, too, if the module has no such name.
                for inner in ast.walk(module):
                    if isinstance(inner, ast.ImportFrom):
                        names |= {one.asname or one.name: inner for one in inner.names}
                for statement in _executed(module.body):
                    names |= _bound(statement)
            self._names[path] = names
        return self._names[path]

    def ancestry(self, path: str, node: ast.ClassDef) -> list[Definition]:
        """A class and the classes that it extends, the most general first."""
        found: list[Definition] = []
        for base in node.bases:
            known = self.find(path, base.id) if isinstance(base, ast.Name) else None
            if known is not None and isinstance(known.node, ast.ClassDef) and known.node is not node:
                found += [one for one in self.ancestry(known.path, known.node) if one not in found]
        return [*found, Definition(path, node)]

    def fields(self, path: str, node: ast.ClassDef) -> dict[str, Sequence[FieldType]]:
        """The fields of a dataclass, with their types."""
        found: dict[str, Sequence[FieldType]] = {}
        for one in self.ancestry(path, node):
            for name, annotation in _annotated(one.node):
                found[name] = self.types(one.path, annotation)
        return found

    def defaults(self, path: str, node: ast.ClassDef) -> dict[str, LiteralValue]:
        """The defaults of fields that are written out."""
        return {
            one.target.id: one.value.value
            for cls in self.ancestry(path, node)
            for one in (cls.node.body if isinstance(cls.node, ast.ClassDef) else ())
            if isinstance(one, ast.AnnAssign)
            and isinstance(one.target, ast.Name)
            and isinstance(one.value, ast.Constant)
            and is_literal(one.value.value)
        }

    def limits(self, path: str, node: ast.ClassDef) -> dict[str, dict[str, float]]:
        """The limits of the numbers in fields."""
        return {
            one.target.id: found
            for cls in self.ancestry(path, node)
            for one in (cls.node.body if isinstance(cls.node, ast.ClassDef) else ())
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and (found := limits(one))
        }

    def is_dataclass(self, definition: Definition) -> bool:
        """Whether a class or one that it extends is decorated as a dataclass."""
        if not isinstance(definition.node, ast.ClassDef):
            return False
        every = self.ancestry(definition.path, definition.node)
        return any(
            last_name(one) in ("dataclass", "config") for cls in every for one in _decorators(cls.node)
        )

    def types(self, path: str, node: ast.expr, depth: int = 0) -> tuple[FieldType, ...]:
        """The types in an annotation; those of a union one by one."""
        if depth > MAX_DEPTH:
            return (FieldType(kind="open"),)
        match node:
            case ast.Constant(value=None):
                return (FieldType(kind="None"),)
            case ast.Constant(value=str(text)):
                return self._quoted(path, text, depth)
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return (*self.types(path, left, depth + 1), *self.types(path, right, depth + 1))
            case ast.Subscript(value=value, slice=inside):
                return self._subscript(path, last_name(value), inside, depth)
            case ast.Name(id=name) if name in _BUILTIN:
                return (FieldType(kind=name),)
            case ast.Name(id=name):
                return self._named(path, name, depth)
            case ast.Attribute():
                return (FieldType(kind="class"),)
        return (FieldType(kind="open"),)

    def _quoted(self, path: str, text: str, depth: int) -> tuple[FieldType, ...]:
        try:
            return self.types(path, ast.parse(text, mode="eval").body, depth + 1)
        except SyntaxError:
            return (FieldType(kind="open"),)

    def _subscript(self, path: str, name: str, inside: ast.expr, depth: int) -> tuple[FieldType, ...]:
        parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        if name == "Literal":
            found = [self._literal(path, one, depth) for one in parts]
            is_known = all(one is not None for one in found)
            texts = tuple(text for one in found for text in one or ())
            return (FieldType(kind="literal" if is_known else "open", texts=texts),)
        if name in _WRAPPERS:
            return self.types(path, parts[0], depth + 1)
        if name in _UNIONS:
            none = (FieldType(kind="None"),) if name == "Optional" else ()
            return (*(found for one in parts for found in self.types(path, one, depth + 1)), *none)
        kind = name.lower() if name in ("List", "Tuple", "Set", "Dict", "Type") else name
        if kind not in ("list", "tuple", "set", "dict", "type"):
            return (FieldType(kind="class"),)
        every = [one for one in parts if not (isinstance(one, ast.Constant) and one.value is Ellipsis)]
        of = tuple(found for one in every[:1] for found in self.types(path, one, depth + 1))
        size = len(parts) if kind == "tuple" and len(every) == len(parts) else 0
        return (FieldType(kind=kind, of=of, size=size),)

    def _literal(self, path: str, node: ast.expr, depth: int) -> tuple[LiteralValue, ...] | None:
        """The values in a literal, some of which can be those of another one; None if they are not known."""
        if isinstance(node, ast.Constant):
            return (node.value,) if is_literal(node.value) else None
        others = self.types(path, node, depth + 1)
        return others[0].texts if [one.kind for one in others] == ["literal"] else None

    def _named(self, path: str, name: str, depth: int) -> tuple[FieldType, ...]:
        found = self.find(path, name)
        if found is None:
            # A class of another package: vLLM takes a text for it.
            return (FieldType(kind="class"),)
        if isinstance(found.node, ast.ClassDef):
            kind = "dataclass" if self.is_dataclass(found) else "class"
            return (FieldType(kind=kind, definition=found),)
        if isinstance(found.node, ast.expr):
            return self.types(found.path, found.node, depth + 1)
        return (FieldType(kind="open"),)


def is_literal(value: object) -> TypeGuard[LiteralValue]:
    """Whether a constant is one of a literal type."""
    return value is None or isinstance(value, (str, int, float, bool))


def _executed(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module that are executed: of `if TYPE_CHECKING`, those of the other branch."""
    for one in body:
        if isinstance(one, ast.If):
            is_checking = last_name(one.test) == "TYPE_CHECKING"
            yield from _executed(one.orelse if is_checking else [*one.orelse, *one.body])
        elif isinstance(one, ast.Try):
            yield from _executed([*(part for handler in one.handlers for part in handler.body), *one.body])
        else:
            yield one


def _bound(statement: ast.stmt) -> dict[str, ast.AST]:
    match statement:
        case ast.ImportFrom(names=names):
            return {one.asname or one.name: statement for one in names}
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return {name: statement}
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return {name: value}
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return {name: value}
    return {}


def _annotated(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for one in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            base = one.annotation.value if isinstance(one.annotation, ast.Subscript) else one.annotation
            if last_name(base) not in ("ClassVar", "InitVar"):
                yield one.target.id, one.annotation


#: The limits of a number that a field can state.
LIMITS = ("gt", "ge", "lt", "le")


def limits(one: ast.AnnAssign) -> dict[str, float]:
    """The limits of a number: of `Field(gt=0)` as the default or in the annotation."""
    calls = [each for part in (one.annotation, one.value) if part is not None for each in ast.walk(part)]
    found: dict[str, float] = {}
    for call in calls:
        if isinstance(call, ast.Call) and last_name(call) == "Field":
            for each in call.keywords:
                if each.arg in LIMITS:
                    with suppress(ValueError):
                        found[each.arg] = float(ast.literal_eval(each.value))
    return found


def _decorators(node: ast.AST) -> Sequence[ast.expr]:
    return node.decorator_list if isinstance(node, ast.ClassDef) else ()


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name, also of a called one; "" for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=called):
            return last_name(called)
    return ""
