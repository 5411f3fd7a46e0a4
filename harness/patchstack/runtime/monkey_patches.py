"""Monkey patches: code that replaces attributes of another package, found and checked without running it.

Every `package.module.Class.name = replacement`, and every `setattr` with a constant name, is a runtime patch.
`check_runtime` checks that its target exists in an upstream tree; `target_differences` compares two versions.
"""

from __future__ import annotations

import ast
import enum
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from harness.digest import digest_bytes
from harness.patchstack.python_source.source_outline import SourceDefinition, definitions, outline
from harness.serialisation import JsonValue
from harness.sources.tree import Tree

_REEXPORTS = 8
_SELF = {"self", "cls"}


class TargetState(enum.StrEnum):
    """Whether the target of a runtime patch exists upstream."""

    FOUND = "found"
    ADDED = "added"
    MOVED = "moved"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, kw_only=True)
class RuntimePatch:
    """One assignment: its place, the dotted name that it replaces, and the new signature ("": unknown)."""

    file: str
    line: int
    target: str
    replacement: str
    signature: str = ""


@dataclass(frozen=True, kw_only=True)
class PatchTarget:
    """The target of a runtime patch in an upstream tree.

    path, name: the file that defines it (re-exports are followed), and its name there.
    digest: of its syntax tree, so that comments and layout do not count.
    """

    target: str
    state: TargetState
    path: str = ""
    name: str = ""
    kind: str = ""
    signature: str = ""
    digest: str = ""
    reason: str = ""

    def to_json(self) -> dict[str, JsonValue]:
        """All fields."""
        return {
            "target": self.target,
            "state": self.state.value,
            "path": self.path,
            "name": self.name,
            "kind": self.kind,
            "signature": self.signature,
            "digest": self.digest,
            "reason": self.reason,
        }


@dataclass(frozen=True, kw_only=True)
class RuntimeVerdict:
    """A runtime patch and its target in one upstream tree. problem: "" if the patch is correct."""

    patch: RuntimePatch
    target: PatchTarget
    problem: str = ""


def find_runtime_patches(tree: Tree, folder: str, package: str) -> tuple[RuntimePatch, ...]:
    """Every assignment to an attribute of `package` in the Python files below `folder`, sorted by file."""
    found: list[RuntimePatch] = []
    for path in sorted(tree.paths()):
        if (not folder or path.startswith(f"{folder}/")) and path.endswith(".py"):
            parsed = _parse(tree.read(path))
            if parsed is not None:
                found += _assignments(path, parsed, package)
    return tuple(found)


@lru_cache(maxsize=64)
def _parse(data: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _assignments(path: str, module: ast.Module, package: str) -> Iterator[RuntimePatch]:
    names = _imported(module)
    signatures = _signatures(module)
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


def _signatures(module: ast.Module) -> dict[str, str]:
    """Signatures of the functions and methods that a module defines, by qualified name."""
    return {definition.qualified: definition.signature for definition in definitions(module)}


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


_outline = lru_cache(maxsize=64)(outline)


def find_target(tree: Tree, target: str, source: str = "") -> PatchTarget:
    """The target with a dotted name, in a tree whose packages are in the folder `source` (e.g. "src")."""
    parts = target.split(".")
    for end in range(len(parts) - 1, 0, -1):
        base = "/".join([*([source] if source else []), *parts[:end]])
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if tree.mode(path):
                return _in_module(tree, target, path, parts[end:], source, _REEXPORTS)
    return PatchTarget(
        target=target, state=TargetState.MOVED, reason=f"there is no module {'.'.join(parts[:-1])}"
    )


def _in_module(tree: Tree, target: str, path: str, names: list[str], source: str, hops: int) -> PatchTarget:
    data = tree.read(path)
    defined = _outline(data)
    if defined is None:
        return PatchTarget(
            target=target, state=TargetState.UNREADABLE, path=path, reason="the module cannot be parsed"
        )
    found = defined.get(".".join(names))
    if found is not None and not _is_import(data, names[0]):
        return _as_target(target, path, found)
    origin = _import_of(data, names[0])
    if origin and hops:
        again = look_up_from(tree, origin, names[1:], source, hops - 1)
        if again is not None:
            return PatchTarget(**{**again.__dict__, "target": target})
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


def look_up_from(tree: Tree, origin: str, rest: list[str], source: str, hops: int) -> PatchTarget | None:
    """Follow a re-export; None if it leads out of the tree."""
    parts = [*origin.split("."), *rest]
    for end in range(len(parts) - 1, 0, -1):
        base = "/".join([*([source] if source else []), *parts[:end]])
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if tree.mode(path):
                return _in_module(tree, ".".join(parts), path, parts[end:], source, hops)
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


def _is_import(data: bytes, name: str) -> bool:
    return bool(_import_of(data, name))


def _import_of(data: bytes, name: str) -> str:
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
    """Check that the target of every runtime patch exists, and that the replacement accepts its arguments."""
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
    ours, theirs = _parameters(replacement), _parameters(upstream)
    if ours is None or theirs is None:
        return True
    mine, upstream_parameters = [*ours.posonlyargs, *ours.args], [*theirs.posonlyargs, *theirs.args]
    for at, parameter in enumerate(upstream_parameters):
        if at >= len(mine):
            if not ours.vararg:
                return False
        elif mine[at].arg != parameter.arg and at >= len(theirs.posonlyargs) and parameter.arg not in _SELF:
            return False
    extra = len(mine) - len(upstream_parameters)
    if extra > len(ours.defaults) or len(ours.defaults) - max(extra, 0) < len(theirs.defaults) - max(
        -extra, 0
    ):
        return False
    named = {parameter.arg for parameter in [*mine[len(theirs.posonlyargs) :], *ours.kwonlyargs]}
    keywords = {parameter.arg for parameter in theirs.kwonlyargs}
    return (ours.kwarg is not None or (keywords <= named and theirs.kwarg is None)) and (
        ours.vararg is not None or theirs.vararg is None
    )


def _parameters(signature: str) -> ast.arguments | None:
    module = _parse(f"{signature.replace('(', 'def f(', 1)}: pass".encode())
    function = module.body[0] if module else None
    return function.args if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) else None


def target_differences(
    patches: Iterable[RuntimePatch], old: Tree, new: Tree, source: str = ""
) -> tuple[str, ...]:
    """Sentences on targets that differ between `old` and `new`; their patches need a review."""
    found = []
    for target in sorted({patch.target for patch in patches}):
        before, after = find_target(old, target, source), find_target(new, target, source)
        if before.state is TargetState.FOUND and after.state is not TargetState.FOUND:
            found.append(f"{target} was removed: {after.reason}")
        elif before.signature != after.signature:
            found.append(
                f"{target} took {before.signature or 'nothing'}, takes {after.signature or 'nothing'}"
            )
        elif before.digest != after.digest:
            found.append(f"the implementation of {target} changed")
    return tuple(found)
