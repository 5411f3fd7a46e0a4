"""The files of one verl, and which of them is a module."""

from __future__ import annotations


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
