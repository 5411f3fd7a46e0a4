"""The outline of a Python module: a small module with the same names, signatures and classes.

The outline is Python text, so `ApiSurface` reads an outline as it reads a source file, and finds the same
names. Bodies of functions are dropped. What they say about names is kept in a function at the end: imports,
words that are assigned on objects, words that are bound, words in quotes and environment variables.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from keyword import iskeyword

from harness.compat.surface.dynamic_attributes import Openness, openness
from harness.compat.surface.module_names import NAMESPACE_FUNCTIONS, class_attributes, dotted, flat_statements
from harness.compat.surface.syntax_walk import walk
from harness.sources.python_syntax import parse_source

#: Longer default values and decorator arguments are written as `...`.
MAX_VALUE = 40
#: The name of the function at the end of an outline, and of the call that states environment variables.
FACTS, ENVIRONMENT = "_outline_", "_environment_"
UNREADABLE_OUTLINE = b"def __getattr__(name): ...  # not parsed\n"
_QUOTED_NAME = re.compile(r"(?:[\w.{}]*\.)?[A-Za-z_]\w*")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,80}")
_ENVIRONMENT_READERS = frozenset({"get", "getenv", "setdefault", "pop"})
#: A source without any of these words has no class whose objects have more attributes than it names.
_OPENING = (b"__dict__", b"setattr", b"__getattr")


def outline(source: bytes) -> bytes:
    """The outline of a module; of a module that cannot be parsed, one in which every name may exist."""
    tree = parse_source(source)
    if tree is None:
        return UNREADABLE_OUTLINE
    writer = _OutlineWriter(may_be_open=any(word in source for word in _OPENING))
    lines = [*writer.statements(tree.body, ""), *_facts(tree)]
    return ("\n".join(lines) + "\n").encode()


class _OutlineWriter:
    """Writes the definitions of one module. may_be_open: whether any class of it can be open at all."""

    def __init__(self, *, may_be_open: bool) -> None:
        self._may_be_open = may_be_open

    def statements(self, body: list[ast.stmt], indent: str) -> Iterator[str]:
        """The lines of a module's body: definitions, imports, and the names that other statements bind."""
        bound: dict[str, None] = {}
        for node in flat_statements(body):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield from _function(node, indent)
                case ast.ClassDef():
                    yield from self._class(node, indent)
                case ast.Import() | ast.ImportFrom():
                    yield indent + ast.unparse(node)
                case _:
                    yield from _other(node, indent, bound)
        if bound:
            yield f"{indent}{'='.join(sorted(bound))}=0"

    def _class(self, node: ast.ClassDef, indent: str) -> Iterator[str]:
        bases = [*map(ast.unparse, node.bases), *map(ast.unparse, node.keywords)]
        yield from _decorators(node, indent)
        yield f"{indent}class {node.name}({','.join(bases)}):" if bases else f"{indent}class {node.name}:"
        inside = indent + " "
        yield f"{inside}..."
        fields: set[str] = set()
        for item in flat_statements(node.body):
            match item:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield from _function(item, inside)
                case ast.ClassDef():
                    yield from self._class(item, inside)
                case ast.AnnAssign(target=ast.Name(id=name), value=value):
                    fields.add(name)
                    yield f"{inside}{name}:0" + (f"={_value(value)}" if value is not None else "")
        others = class_attributes(node) - fields
        if others:
            yield f"{inside}{'='.join(sorted(others))}=0"
        state = openness(node) if self._may_be_open else Openness.CLOSED
        if state is Openness.ANY:
            yield f"{inside}_.__dict__"
        elif state is Openness.DATA:
            yield f"{inside}def __setstate(self,k,v):setattr(self,k,v)"


def _other(node: ast.stmt, indent: str, bound: dict[str, None]) -> Iterator[str]:
    value = getattr(node, "value", None)
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    exports = isinstance(target, ast.Name) and target.id == "__all__"
    extends = isinstance(value, ast.Call) and dotted(value.func) in ("__all__.extend", "__all__.append")
    if exports or extends:
        yield indent + ast.unparse(node).replace("\n", " ")
    read = set()
    for inner in walk(node):
        if isinstance(inner, ast.Subscript) and isinstance(inner.ctx, ast.Load):
            read |= {id(inner.value.func)} if isinstance(inner.value, ast.Call) else set()
        elif isinstance(inner, ast.Name):
            if isinstance(inner.ctx, ast.Store) and inner.id != "__all__":
                bound[inner.id] = None
            elif inner.id in NAMESPACE_FUNCTIONS and id(inner) not in read:
                yield f"{indent}{inner.id}"


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, indent: str) -> Iterator[str]:
    yield from _decorators(node, indent)
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    yield f"{indent}{keyword} {node.name}({_parameters(node.args)}):..."


def _parameters(arguments: ast.arguments) -> str:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parts = []
    for number, (one, default) in enumerate(zip(positional, defaults, strict=True), start=1):
        parts.append(one.arg + ("" if default is None else f"={_value(default)}"))
        if number == len(arguments.posonlyargs):
            parts.append("/")
    if arguments.vararg:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(one.arg + ("" if default is None else f"={_value(default)}"))
    return ",".join([*parts, *([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])])


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, indent: str) -> Iterator[str]:
    for decorator in node.decorator_list:
        if not isinstance(decorator, ast.Call):
            yield f"{indent}@{ast.unparse(decorator)}".replace("\n", " ")
            continue
        texts = [_value(argument) for argument in decorator.args if isinstance(argument, ast.Constant)]
        yield f"{indent}@{ast.unparse(decorator.func)}({','.join(texts)})".replace("\n", " ")


def _value(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= MAX_VALUE and "\n" not in text else "..."


def _facts(tree: ast.Module) -> Iterator[str]:
    """The function at the end, with what the dropped bodies say about names."""
    assigned, by_setattr, bound, quoted = set(), set(), set(), set()
    variables: set[str] = set()
    imports: set[str] = set()
    outside = {id(node) for node in flat_statements(tree.body)}
    for node in walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom() if id(node) not in outside:
                imports.add(ast.unparse(node))
            case ast.Attribute(ctx=ast.Store(), attr=name, value=holder):
                # What is set on `self` is an attribute of a class, which the outline has.
                if not (isinstance(holder, ast.Name) and holder.id == "self"):
                    assigned.add(name)
            case ast.keyword(arg=str(name)):
                bound.add(name)
            case ast.Constant(value=str(text)) if len(text) < 120 and _QUOTED_NAME.fullmatch(text):
                quoted.add(text)
            case ast.Call(func=ast.Name(id="setattr"), args=[_, *rest]):
                by_setattr |= {
                    inner.value
                    for part in rest
                    for inner in walk(part)
                    if isinstance(inner, ast.Constant)
                    and isinstance(inner.value, str)
                    and inner.value.isidentifier()
                }
        variables |= _variables(node)
    parts = [
        *sorted(imports),
        *_call("_", (f"{name}=0" for name in sorted(bound - assigned) if not iskeyword(name))),
        *(f"_.{name}=0" for name in sorted(assigned)),
        *(f'setattr(_,"{name}",0)' for name in sorted(by_setattr)),
        *_call("_", map(_literal, sorted(quoted - variables))),
        *_call(ENVIRONMENT, map(_literal, sorted(variables))),
    ]
    if parts:
        yield f"def {FACTS}():{';'.join(parts)}"


def _call(name: str, arguments: Iterable[str]) -> list[str]:
    written = ",".join(arguments)
    return [f"{name}({written})"] if written else []


def _literal(text: str) -> str:
    return f'"{text}"'


def _variables(node: ast.AST) -> set[str]:
    """The environment variables that an expression reads or tests, by their literal names."""
    match node:
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
            written = dotted(function)
            reads = written.rpartition(".")[2] in _ENVIRONMENT_READERS and (
                "environ" in written or written.endswith("getenv")
            )
            return {name} if reads and _VARIABLE.fullmatch(name) else set()
        case ast.Subscript(value=holder, slice=ast.Constant(value=str(name))):
            return {name} if dotted(holder).endswith("environ") and _VARIABLE.fullmatch(name) else set()
        case ast.Compare(left=ast.Constant(value=str(name)), comparators=[holder]):
            return {name} if dotted(holder).endswith("environ") and _VARIABLE.fullmatch(name) else set()
    return set()
