"""What a Python file calls of vLLM: `LLM(...)`, `SamplingParams(...)`, `AsyncEngineArgs(...)`.

Nothing is executed: an argument is known if it is written out, or is a name that the file binds once, to
something that is written out.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.compat.lint.shell.values import ScriptValue
from harness.errors import InputError, Location
from harness.sources.python_syntax import parse_source

PACKAGE = "vllm"
MAX_FILE_BYTES = 1 << 20


class NoCallsError(InputError):
    """A Python file that does not use vLLM."""


@dataclass(frozen=True, kw_only=True)
class PythonArgument:
    """A keyword argument. value: of a literal; setting: as it is written, unknown if it is no literal."""

    value: object
    setting: ScriptValue


@dataclass(frozen=True, kw_only=True)
class PythonCall:
    """A call of a name of vLLM. module, name: where it is imported from.

    may_have_more: it has `**arguments`, or some without a name.
    guarded: whether the file expects that the call can fail, or that it depends on a version.
    """

    module: str
    name: str
    arguments: Mapping[str, PythonArgument]
    where: Location
    may_have_more: bool = False
    guarded: bool = False


def read_calls(path: Path) -> tuple[PythonCall, ...]:
    """The calls of a file. InputError if it cannot be read or parsed, or imports nothing of vLLM."""
    try:
        data = path.read_bytes() if path.is_file() and path.stat().st_size <= MAX_FILE_BYTES else None
    except OSError as error:
        raise InputError("this file cannot be read", where=Location(path), why=str(error)) from error
    if data is None:
        raise InputError("this is not a Python file", where=Location(path), why="it is no file, or too large")
    module = parse_source(data)
    if module is None:
        raise InputError("this Python file cannot be parsed", where=Location(path))
    reader = _Reader(module, path)
    if not reader.imported:
        raise NoCallsError(
            "this Python file does not use vLLM",
            where=Location(path),
            why="of Python files, lint reads what they call of vLLM",
            fix="pass the launch script that starts it, or a file that imports vLLM",
        )
    return tuple(reader.calls())


class _Reader:
    def __init__(self, module: ast.Module, path: Path) -> None:
        self._path = path
        self._module = module
        self._bound = Counter(_bindings(module))
        self._literals = dict(self._literal_names())
        #: Name -> the module of vLLM that it is imported from, and its name there; "" for a module itself.
        self.imported = dict(self._imports())

    def calls(self) -> Iterator[PythonCall]:
        """The calls of imported names, in the order of the file."""
        guarded = {id(inner) for node in ast.walk(self._module) if _guards(node) for inner in ast.walk(node)}
        for node in ast.walk(self._module):
            target = self._target(node.func) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and target is not None:
                arguments = {one.arg: self._argument(one.arg, one.value) for one in node.keywords if one.arg}
                yield PythonCall(
                    module=target[0],
                    name=target[1],
                    arguments=arguments,
                    where=Location(self._path, node.lineno, node.col_offset + 1),
                    may_have_more=bool(node.args) or any(one.arg is None for one in node.keywords),
                    guarded=id(node) in guarded,
                )

    def _imports(self) -> Iterator[tuple[str, tuple[str, str]]]:
        for node in ast.walk(self._module):
            if isinstance(node, ast.ImportFrom) and not node.level and _is_vllm(node.module or ""):
                for one in node.names:
                    if self._bound[one.asname or one.name] == 1:
                        yield one.asname or one.name, (node.module or "", one.name)
            elif isinstance(node, ast.Import):
                for one in node.names:
                    name = one.asname or one.name.partition(".")[0]
                    # `import vllm.a` and `import vllm.b` bind the same name.
                    if _is_vllm(one.name) and (not one.asname or self._bound[name] == 1):
                        yield name, (one.name if one.asname else PACKAGE, "")

    def _target(self, node: ast.expr) -> tuple[str, str] | None:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        found = self.imported.get(node.id) if isinstance(node, ast.Name) else None
        if found is None or bool(found[1]) is bool(parts):
            return None
        module, name = found
        return (module, name) if name else (".".join([module, *reversed(parts[1:])]), parts[0])

    def _argument(self, name: str, node: ast.expr) -> PythonArgument:
        where = Location(self._path, node.lineno, node.col_offset + 1)
        written = _written(node)
        source = self._literals.get(node.id, node) if isinstance(node, ast.Name) else node
        try:
            value = ast.literal_eval(source)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return PythonArgument(
                value=None, setting=ScriptValue(text=written, unknown=written or name, where=where)
            )
        return PythonArgument(value=value, setting=ScriptValue(text=repr(value), where=where))

    def _literal_names(self) -> Iterator[tuple[str, ast.expr]]:
        for node in ast.walk(self._module):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if isinstance(target, ast.Name) and self._bound[target.id] == 1:
                    yield target.id, node.value


def _written(node: ast.expr) -> str:
    """The text of an expression; "" for one that is nested more deeply than calls can be."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


def _is_vllm(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def _bindings(module: ast.Module) -> Iterator[str]:
    """Every name that the file binds, once for each place."""
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from (one.asname or one.name.partition(".")[0] for one in names)
            case ast.Global(names=texts) | ast.Nonlocal(names=texts):
                # What is bound in several scopes is not followed.
                yield from texts


def _guards(node: ast.AST) -> bool:
    """Whether what is in a statement may be for another version, or may fail."""
    if isinstance(node, ast.Try):
        return bool(node.handlers)
    return isinstance(node, (ast.If, ast.IfExp)) and "version" in _written(node.test)
