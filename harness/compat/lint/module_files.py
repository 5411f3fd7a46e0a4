"""The files of one tree, and which of them is a module."""

from __future__ import annotations

import ast
import functools

from harness.digest import digest_bytes, digest_json
from harness.sources.python_syntax import parse_source
from harness.sources.tree import Tree


def unparsed(path: str) -> str:
    """What is not known if a module cannot be parsed."""
    return f"what is in {path}, which cannot be parsed"


class ModuleFiles:
    """The paths of a tree. All scripts that are linted with it ask for the same modules."""

    def __init__(self, paths: frozenset[str]) -> None:
        self.paths = paths
        self._found: dict[str, str] = {}

    def path_of(self, dotted: str) -> str:
        """The file of a module; "" if it is not a module of this tree."""
        if dotted not in self._found:
            base = dotted.replace(".", "/")
            places = (f"{base}.py", f"{base}/__init__.py")
            self._found[dotted] = next((path for path in places if path in self.paths), "")
        return self._found[dotted]


class ModuleSources:
    """The modules of a tree, each of which is parsed once."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.files = ModuleFiles(frozenset(tree.paths()))
        self._parsed: dict[str, ast.Module | None] = {}

    def text(self, path: str) -> str:
        """The text of a file."""
        return self._tree.read(path).decode("utf-8", "replace")

    def syntax_tree(self, path: str) -> ast.Module | None:
        """The syntax tree of a file; None if it cannot be parsed."""
        if path not in self._parsed:
            self._parsed[path] = parse_source(self._tree.read(path))
        return self._parsed[path]

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the names of all files and of the content of the Python files."""
        names = sorted(self.files.paths)
        contents = [digest_bytes(self._tree.read(name)) for name in names if name.endswith(".py")]
        return digest_json([names, contents])
