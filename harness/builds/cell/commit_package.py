"""Installs a pure Python package from a commit of a local mirror, with the metadata that installers write.

The build of such a package only copies files, and omits folders that people use from a checkout (verl's
`recipe`). Here the folders are copied from the commit; no code of the repository runs.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.errors import InputError, Location
from harness.matrix.model.environment_facets import PinnedSource
from harness.sources.git.git_repository import GitTree
from harness.sources.git.mirrors import find_mirror
from harness.sources.packages.source_requirements import declared_requirements
from harness.sources.tree import SYMLINK, path_problem

# Package -> the folders of its repository to install.
PURE_PYTHON_FOLDERS: Mapping[str, tuple[str, ...]] = {"verl": ("verl", "recipe")}


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

    def install(self, root: Path) -> None:
        """Write the package's folders and its metadata below `root` (site-packages).

        InputError for a path that would leave `root`.
        """
        names = []
        for path in self._paths():
            data = self.tree.read(path)
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            names.append(_record_line(path, data))
        info = root / f"{self.package}-{self.version}.dist-info"
        info.mkdir()
        requires = "".join(f"Requires-Dist: {text}\n" for text in declared_requirements(self.tree))
        head = f"Metadata-Version: 2.1\nName: {self.package}\nVersion: {self.version}\n"
        for name, text in (("METADATA", head + requires), ("INSTALLER", "npu-matrix\n")):
            (info / name).write_text(text, "utf-8")
            names.append(_record_line(f"{info.name}/{name}", text.encode()))
        record = [*names, f"{info.name}/RECORD,,"]
        (info / "RECORD").write_text("".join(f"{line}\n" for line in record), "utf-8")

    def _paths(self) -> Iterator[str]:
        for path in sorted(self.tree.paths()):
            if (
                PurePosixPath(path).parts[0] not in PURE_PYTHON_FOLDERS[self.package]
                or self.tree.mode(path) == SYMLINK
            ):
                continue
            if problem := path_problem(path):
                raise InputError(
                    f"{path!r} cannot be checked out", where=Location(self.tree.label), why=problem
                )
            yield path


def _record_line(path: str, data: bytes) -> str:
    """A line of a RECORD file (packaging.python.org, recording installed projects)."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(data)}"


def find_commit_package(source: PinnedSource, mirrors: Sequence[Path]) -> CommitPackage | None:
    """The package at its commit in a mirror; None if no mirror has the commit."""
    repository = find_mirror(mirrors, source.commit) if source.commit else None
    if repository is None:
        return None
    tree = repository.tree(source.commit)
    return CommitPackage(package=source.package, version=source.version, commit=tree.commit, tree=tree)
