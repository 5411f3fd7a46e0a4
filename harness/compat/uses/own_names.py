"""What patches break within the package that they change: names that other files of it use, and syntax.

Only uses that the patches can affect are checked: those in changed files, and those of names whose definition
the patches remove or change.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from harness.compat.surface.api_surface import ApiSurface, module_of_file
from harness.compat.surface.syntax_walk import walk
from harness.compat.uses.use import Use
from harness.compat.uses.use_check import check_uses
from harness.compat.uses.use_finding import UseFinding
from harness.compat.uses.use_visitor import uses_in_file
from harness.sources.python_syntax import parse_source, syntax_error


def broken_own_names(
    before: ApiSurface, after: ApiSurface, changes: Mapping[str, str | None], label: str
) -> tuple[UseFinding, ...]:
    """Uses of the package's own names that fit `before` and do not fit `after`, and files that are no Python.

    changes: file -> its text after the patches, None if they remove it. label: name and version.
    """
    old = {file: before.source(module) for module, file in before.files() if file in changes}
    new = {file: text.encode() for file, text in changes.items() if text is not None}
    affected = frozenset(_affected_names(old, new))
    tops = {module_of_file(file).partition(".")[0] for file in changes} - {""}
    known = {
        (finding.file, finding.kind, finding.name)
        for top in tops
        for finding in _findings(before, top, old, affected, label)
    }
    errors = (
        _syntax_finding(file, error, label)
        for file, text in sorted(new.items())
        if (error := syntax_error(text)) and not syntax_error(old.get(file, b""))
    )
    found = (
        replace(finding, introduced=True)
        for top in sorted(tops)
        for finding in _findings(after, top, new, affected, label)
        if (finding.file, finding.kind, finding.name) not in known
    )
    return (*errors, *found)


def _findings(
    surface: ApiSurface, top: str, changed: Mapping[str, bytes], affected: frozenset[str], label: str
) -> tuple[UseFinding, ...]:
    """The uses of the package `top` in its changed files, and of affected names, that do not fit it."""
    words = re.compile(rb"\b(?:%s)\b" % b"|".join(re.escape(name).encode() for name in sorted(affected)))
    uses: list[Use] = []
    for module, file in surface.files():
        source = surface.source(module) if module.partition(".")[0] == top else b""
        is_changed = file in changed
        if not source or not (is_changed or (affected and words.search(source))):
            continue
        tree = parse_source(source)
        uses += (
            use
            for use in (uses_in_file(tree, source, module, file, {top}) if tree else ())
            if is_changed or not affected.isdisjoint(use.target.split(".")[1:])
        )
    return check_uses(uses, {top: (label, surface)}, surface)


def _affected_names(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> Iterator[str]:
    """The names whose definitions the patches remove or change for those who use them."""
    for file, source in old.items():
        before = _interface(source)
        after = _interface(new.get(file, b""))
        yield from (name for name, shapes in before.items() if shapes - after.get(name, set()))
        if file not in new:
            yield module_of_file(file).rpartition(".")[2]


def _interface(source: bytes) -> dict[str, set[str]]:
    """Name -> what callers see of each of its definitions in the file."""
    found: dict[str, set[str]] = defaultdict(set)
    tree = parse_source(source)
    for node in walk(tree) if tree else ():
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found[name].add(ast.dump(node.args) + "".join(map(ast.dump, node.decorator_list)))
            case ast.ClassDef(name=name):
                found[name].add("".join(map(ast.dump, [*node.bases, *node.keywords, *node.decorator_list])))
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found[name].add("")
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    found[alias.asname or alias.name.partition(".")[0]].add("")
    return found


def _syntax_finding(file: str, error: SyntaxError, label: str) -> UseFinding:
    return UseFinding(
        kind="syntax",
        file=file,
        line=error.lineno or 1,
        provider=label,
        name=file,
        text=f"this is no Python: {error.msg}",
        guarded="",
        at_import=True,
        breaks=True,
        introduced=True,
    )
