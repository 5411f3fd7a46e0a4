"""Installs a pure Python package from a commit of a local mirror, with the metadata that installers write.

The build of such a package only copies files, as its own files tell, and omits folders that people use from a
checkout (verl's `recipe`). Here the folders are copied from the commit; no code of the repository runs.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InputError, Location
from harness.matrix.model.environment_facets import PinnedSource
from harness.sources.git.git_repository import GitTree
from harness.sources.git.mirrors import find_source
from harness.sources.packages.source_build import SourceBuild, source_build
from harness.sources.packages.source_requirements import source_requirements
from harness.sources.tree import SYMLINK, path_problem

# Package -> folders of its repository that are no part of it, and are installed because people use them.
FOLDERS_BESIDE: Mapping[str, tuple[str, ...]] = {"verl": ("recipe",)}


@dataclass(frozen=True, kw_only=True)
class CommitPackage:
    """A package at a commit of a mirror on this host."""

    package: str
    version: str
    commit: str
    tree: GitTree

    @property
    def identity(self) -> str:
        """What identifies this package in the digest of an environment."""
        return f"{self.package}@{self.commit}"

    @property
    def build(self) -> SourceBuild:
        """What its build does, as its own files tell."""
        return source_build(self.tree)

    def install(self, root: Path) -> None:
        """Write the package's folders and its metadata below `root` (site-packages).

        InputError for a path that would leave `root`.
        """
        build = self.build
        names = [_written(root, path, self.tree.read(source)) for source, path in self._paths(build)]
        info = f"{self.package}-{self.version}.dist-info"
        requires = "".join(f"Requires-Dist: {text}\n" for text in source_requirements(self.tree))
        head = f"Metadata-Version: 2.1\nName: {self.package}\nVersion: {self.version}\n"
        texts = {"METADATA": head + requires, "INSTALLER": "npu-matrix\n"}
        if build.entry_points:
            groups = build.entry_points.items()
            lines = (line for group, points in groups for line in (f"[{group}]", *points, ""))
            texts["entry_points.txt"] = "\n".join(lines)
        names += [_written(root, f"{info}/{name}", text.encode()) for name, text in texts.items()]
        record = [*names, f"{info}/RECORD,,"]
        (root / info / "RECORD").write_text("".join(f"{line}\n" for line in record), "utf-8")

    def _paths(self, build: SourceBuild) -> Iterator[tuple[str, str]]:
        """Paths in the repository, and below site-packages."""
        installed = {build.prefix + root: root for root in build.roots}
        installed |= {folder: folder for folder in FOLDERS_BESIDE.get(self.package, ())}
        for path in sorted(self.tree.paths()):
            root = next((one for one in installed if path == one or path.startswith(f"{one}/")), None)
            if root is None or self.tree.mode(path) == SYMLINK:
                continue
            if problem := path_problem(path):
                raise InputError(
                    f"{path!r} cannot be checked out", where=Location(self.tree.label), why=problem
                )
            yield path, installed[root] + path.removeprefix(root)


def _written(root: Path, path: str, data: bytes) -> str:
    """Write a file below `root`; its line of a RECORD."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return _record_line(path, data)


def _record_line(path: str, data: bytes) -> str:
    """A line of a RECORD file (packaging.python.org, recording installed projects)."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(data)}"


def find_commit_package(source: PinnedSource, mirrors: Sequence[Path]) -> CommitPackage | None:
    """The package at its commit in a mirror; None if no mirror has the commit."""
    repository = find_source(mirrors, source.commit, source.repository)
    if repository is None:
        return None
    tree = repository.tree(source.commit)
    return CommitPackage(package=source.package, version=source.version, commit=tree.commit, tree=tree)
