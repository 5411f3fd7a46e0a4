"""A tree of files in memory, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.sources.tree import TreeFile


@dataclass(frozen=True, kw_only=True)
class MemoryTree:
    """Files in memory."""

    files: Mapping[str, TreeFile]
    label: str = "files in memory"

    def paths(self) -> Iterator[str]:
        """Every file's path."""
        return iter(self.files)

    def mode(self, path: str) -> str | None:
        """The file's mode, or None."""
        file = self.files.get(path)
        return file.mode if file else None

    def is_folder(self, path: str) -> bool:
        """Whether there are files below `path`."""
        return any(other.startswith(f"{path}/") for other in self.files)

    def read(self, path: str) -> bytes:
        """The file's bytes; KeyError if there is no such file."""
        return self.files[path].data
