"""What commands work on: patches chosen from a folder, and the upstream tree they are held against."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import InputError, Location

if TYPE_CHECKING:
    from harness.sources.git.git_repository import Repository
    from harness.sources.packages.pip_download import RunCommand
    from harness.sources.tree import HasBlobs, Tree

_VERSION_FILES = ("{package}/version/version", "PKG-INFO")


@dataclass(frozen=True, kw_only=True)
class UpstreamTree:
    """An upstream tree. version: which one it is, "" when neither it nor the user says."""

    tree: Tree
    version: str
    blobs: HasBlobs | None = None


def folder_target(path: Path, package: str, version: str = "") -> UpstreamTree:
    """A working folder, an installed package's parent folder, a wheel or an sdist."""
    tree = open_folder(path)
    return UpstreamTree(tree=tree, version=version or version_in(tree, package))


def open_folder(path: Path) -> Tree:
    """The tree of a folder, a wheel or an sdist; InputError when there is none."""
    from harness.sources.packages.archive import open_archive
    from harness.sources.tree import DirectoryTree

    if not path.exists():
        raise InputError(
            "there is no such tree", where=Location(path), fix="give a folder, a wheel or an sdist"
        )
    return DirectoryTree(root=path) if path.is_dir() else open_archive(path)


def commit_target(repository: Repository, reference: str, package: str, version: str = "") -> UpstreamTree:
    """One commit. Its version is what its own tree says, with the commit behind it."""
    tree = repository.tree(reference)
    found = version or version_in(tree, package)
    return UpstreamTree(
        tree=tree,
        blobs=repository,
        version=f"{found}@{tree.commit}" if found and "@" not in found else found,
    )


def version_target(
    package: str, version: str, *, cache: Path, command: RunCommand, mirrors: Path | None
) -> UpstreamTree:
    """The release of this version, or the commit behind its `@`. InputError when there is none at hand."""
    release, _at, commit = version.partition("@")
    source = {"package": package, "kind": "commit" if commit else "release", "version": release}
    tree, blobs, absent = upstream_tree(
        {**source, "commit": commit}, cache=cache, command=command, mirrors=mirrors
    )
    if tree is None:
        raise InputError(absent, fix="give a repository that has it: --repo PATH --ref REF")
    return UpstreamTree(tree=tree, blobs=blobs, version=version)


def upstream_tree(
    source: Mapping[str, Any], *, cache: Path, command: RunCommand, mirrors: Path | None
) -> tuple[Tree | None, HasBlobs | None, str]:
    """The tree a `verl_tree` facet names and its old contents, or why there is none at hand."""
    if source["kind"] == "release":
        from harness.sources.packages.archive import open_archive
        from harness.sources.packages.pip_download import ReleaseNotFoundError, fetch_release

        try:
            wheel = fetch_release(source["package"], source["version"], cache=cache, command=command)
        except ReleaseNotFoundError as error:
            return None, None, error.problems[0].what
        return open_archive(wheel), None, ""
    from harness.sources.git.mirrors import find_mirror

    commit = source["commit"]
    repository = find_mirror(mirrors, commit) if mirrors else None
    if repository is None:
        return None, None, f"the upstream tree of commit {commit[:12]} is not at hand"
    tree = repository.tree(commit)
    return tree, tree, ""


def version_in(tree: Tree, package: str) -> str:
    """The version a tree says it is, or ""."""
    name = package.replace("-", "_")
    wheel = re.compile(rf"{re.escape(name)}-[^/]+\.dist-info/METADATA")
    metadata = sorted(path for path in tree.paths() if wheel.fullmatch(path))
    for path in [*(pattern.format(package=name) for pattern in _VERSION_FILES), *metadata]:
        if tree.mode(path) is None:
            continue
        text = tree.read(path).decode("utf-8", "replace")
        if path.endswith(("PKG-INFO", "METADATA")):
            text = next((line[8:] for line in text.splitlines() if line.startswith("Version:")), "")
        if text.strip():
            return text.strip().split()[0]
    return ""
