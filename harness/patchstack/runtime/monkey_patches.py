"""Monkey patches: code that replaces attributes of another package, found and checked without running it.

Every `package.module.Class.name = replacement`, and every `setattr` with a constant name, is a runtime patch.
So is every attribute of a class whose base is a helper with the target in brackets, as verl_npu and
ArcticInference write them: `class Ours(NPUPatchHelper[Target])`. `check_runtime` checks that its target
exists in an upstream tree.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from harness.digest import digest_bytes
from harness.patchstack.python_source.source_outline import (
    SourceDefinition,
    definitions,
    outline,
)
from harness.sources.python_syntax import parse_source
from harness.sources.tree import Tree

_REEXPORTS = 8
_SELF = {"self", "cls"}
_TAKES_TARGET = "__class_getitem__"

_parse = lru_cache(maxsize=64)(parse_source)
_outline = lru_cache(maxsize=64)(outline)


class TargetState(enum.StrEnum):
    """Whether the target of a runtime patch exists upstream."""

    FOUND = "found"
    ADDED = "added"
    MOVED = "moved"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True)
class RuntimePatch:
    """One assignment to `target`, a dotted name. signature: that of the replacement, "" if it is unknown."""

    file: str
    line: int
    target: str
    replacement: str
    signature: str = ""


@dataclass(frozen=True, kw_only=True)
class PatchTarget:
    """The target of a runtime patch in an upstream tree.

    path, name: the file that defines the target (re-exports are followed), and its name in this file.
    digest: digest of its syntax tree, so that comments and layout do not count.
    reason: why the target is not in the state `found`.
    """

    target: str
    state: TargetState
    path: str = ""
    name: str = ""
    kind: str = ""
    signature: str = ""
    digest: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RuntimeVerdict:
    """A runtime patch and its target in one upstream tree. problem: "" if the patch fits the target."""

    patch: RuntimePatch
    target: PatchTarget
    problem: str = ""


def find_runtime_patches(tree: Tree, folder: str, package: str) -> tuple[RuntimePatch, ...]:
    """Every patch of an attribute of `package` in the Python files below `folder`, sorted by file.

    The helpers of patch classes may be anywhere in the tree.
    """
    helpers = _helpers(tree)
    found: list[RuntimePatch] = []
    for path in sorted(tree.paths()):
        if (not folder or path.startswith(f"{folder}/")) and path.endswith(".py"):
            parsed = _parse(tree.read(path))
            if parsed is not None:
                found += _assignments(path, parsed, package)
                found += _patch_classes(path, parsed, package, helpers)
    return tuple(found)


def _helpers(tree: Tree) -> frozenset[str]:
    """Names of the classes that take the target of a patch in brackets."""
    sources = (tree.read(path) for path in tree.paths() if path.endswith(".py"))
    modules = (_parse(source) for source in sources if _TAKES_TARGET.encode() in source)
    return frozenset(
        node.name
        for module in modules
        for node in (ast.walk(module) if module else ())
        if isinstance(node, ast.ClassDef)
        and any(isinstance(part, ast.FunctionDef) and part.name == _TAKES_TARGET for part in node.body)
    )


def _patch_classes(
    path: str, module: ast.Module, package: str, helpers: frozenset[str]
) -> Iterator[RuntimePatch]:
    names = _imported(module)
    signatures = {definition.qualified: definition.signature for definition in definitions(module)}
    for node in ast.walk(module):
        owner = _bracketed(node, helpers, names) if isinstance(node, ast.ClassDef) else ""
        if isinstance(node, ast.ClassDef) and f"{owner}.".startswith(f"{package}."):
            for line, name in _attributes(node):
                replacement = f"{node.name}.{name}"
                yield RuntimePatch(
                    file=path,
                    line=line,
                    target=f"{owner}.{name}",
                    replacement=replacement,
                    signature=signatures.get(replacement, ""),
                )


def _bracketed(node: ast.ClassDef, helpers: frozenset[str], names: Mapping[str, str]) -> str:
    """The dotted name that a base has in brackets, "" if none of them is a helper."""
    bases = (base for base in node.bases if isinstance(base, ast.Subscript))
    targets = (
        _dotted(base.slice, names) for base in bases if ast.unparse(base.value).rpartition(".")[2] in helpers
    )
    return next(targets, "")


def _attributes(node: ast.ClassDef) -> Iterator[tuple[int, str]]:
    """The line and name of everything that the body of a class defines."""
    for part in node.body:
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield part.lineno, name
            case ast.Assign(targets=targets):
                yield from ((part.lineno, one.id) for one in targets if isinstance(one, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield part.lineno, name


def _assignments(path: str, module: ast.Module, package: str) -> Iterator[RuntimePatch]:
    names = _imported(module)
    signatures = {definition.qualified: definition.signature for definition in definitions(module)}
    for node in ast.walk(module):
        for target, value in _targets(node):
            dotted = _dotted(target, names)
            if dotted and dotted.startswith(f"{package}."):
                replacement = ast.unparse(value)
                yield RuntimePatch(
                    file=path,
                    line=getattr(node, "lineno", 0),
                    target=dotted,
                    replacement=replacement,
                    signature=signatures.get(replacement, ""),
                )


def _targets(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Pairs of the replaced attribute and its replacement."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets if isinstance(target, ast.Attribute))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
        match node.args:
            case [owner, ast.Constant(value=str(name)), value]:
                yield ast.Attribute(value=owner, attr=name, ctx=ast.Store()), value


def _imported(module: ast.Module) -> dict[str, str]:
    """Local name -> dotted name, for every import at any place in the module."""
    names: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def find_target(tree: Tree, target: str, source: str = "") -> PatchTarget:
    """The target with a dotted name, in a tree whose packages are in the folder `source` (e.g. "src")."""
    found = _look_up(tree, target, source, _REEXPORTS)
    if found is not None:
        return found
    module = target.rpartition(".")[0]
    return PatchTarget(target=target, state=TargetState.MOVED, reason=f"there is no module {module}")


def _in_module(tree: Tree, target: str, path: str, names: list[str], source: str, hops: int) -> PatchTarget:
    data = tree.read(path)
    defined = _outline(data)
    if defined is None:
        return PatchTarget(
            target=target, state=TargetState.UNREADABLE, path=path, reason="the module cannot be parsed"
        )
    found = defined.get(".".join(names))
    origin = _import_of(data, names[0])
    if found is not None and not origin:
        return _as_target(target, path, found)
    if origin and hops:
        again = _look_up(tree, ".".join([origin, *names[1:]]), source, hops - 1)
        if again is not None:
            return replace(again, target=target)
    owner = ".".join(names[:-1])
    if not owner or owner in defined:
        return PatchTarget(
            target=target,
            state=TargetState.ADDED,
            path=path,
            reason=f"{names[-1]} does not exist: the patch adds it",
        )
    return PatchTarget(
        target=target,
        state=TargetState.MOVED,
        path=path,
        reason=f"{target.rpartition('.')[0]} no longer exists",
    )


def _look_up(tree: Tree, target: str, source: str, hops: int) -> PatchTarget | None:
    """Find a target, following up to `hops` re-exports; None if the tree has no such module."""
    parts = target.split(".")
    for end in range(len(parts) - 1, 0, -1):
        base = "/".join([*([source] if source else []), *parts[:end]])
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if tree.mode(path):
                return _in_module(tree, target, path, parts[end:], source, hops)
    return None


def _as_target(target: str, path: str, found: SourceDefinition) -> PatchTarget:
    return PatchTarget(
        target=target,
        state=TargetState.FOUND,
        path=path,
        name=found.qualified,
        kind=found.kind,
        signature=found.signature,
        digest=digest_bytes(found.body.encode()),
    )


def _import_of(data: bytes, name: str) -> str:
    """The dotted name that a module imports as `name`, or ""."""
    module = _parse(data)
    for node in module.body if module else []:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return f"{node.module}.{alias.name}"
    return ""


def check_runtime(
    patches: Iterable[RuntimePatch], upstream: Tree, source: str = ""
) -> tuple[RuntimeVerdict, ...]:
    """Check that every runtime patch has a target, and that its replacement accepts the same calls."""
    return tuple(_verdict(patch, find_target(upstream, patch.target, source)) for patch in patches)


def _verdict(patch: RuntimePatch, target: PatchTarget) -> RuntimeVerdict:
    problem = ""
    if target.state in {TargetState.MOVED, TargetState.UNREADABLE}:
        problem = f"{patch.target}: {target.reason}"
    elif target.signature and patch.signature and not accepts(patch.signature, target.signature):
        problem = f"{patch.target} takes {target.signature}, but its replacement takes {patch.signature}"
    return RuntimeVerdict(patch=patch, target=target, problem=problem)


def accepts(replacement: str, upstream: str) -> bool:
    """Whether a function with signature `replacement` accepts every call that `upstream` accepts.

    Annotations are ignored. Names of parameters matter, because callers may pass them by keyword.
    """
    new, old = _parameters(replacement), _parameters(upstream)
    if new is None or old is None:
        return True
    new_positional, old_positional = [*new.posonlyargs, *new.args], [*old.posonlyargs, *old.args]
    for at, parameter in enumerate(old_positional):
        if at >= len(new_positional):
            if not new.vararg:
                return False
        elif at >= len(old.posonlyargs) and parameter.arg not in {new_positional[at].arg, *_SELF}:
            return False
    extra = len(new_positional) - len(old_positional)
    if extra > len(new.defaults):
        return False
    if len(new.defaults) - max(extra, 0) < len(old.defaults) - max(-extra, 0):
        return False
    accepted = {parameter.arg for parameter in [*new_positional[len(old.posonlyargs) :], *new.kwonlyargs]}
    keywords = {parameter.arg for parameter in old.kwonlyargs}
    if not new.kwarg and (old.kwarg or not keywords <= accepted):
        return False
    return bool(new.vararg) or not old.vararg


def _parameters(signature: str) -> ast.arguments | None:
    module = _parse(f"{signature.replace('(', 'def f(', 1)}: pass".encode())
    function = module.body[0] if module else None
    return function.args if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) else None
