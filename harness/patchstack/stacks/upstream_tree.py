"""The upstream tree that patches are applied to: a folder, an archive, a commit or a published release."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from harness.errors import InputError, Location
from harness.patchstack.stacks.tree_source import TreeSource
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_mirror, mirrors_problem
from harness.sources.packages.archive import open_archive
from harness.sources.packages.index_lookup import ReleaseNotFoundError
from harness.sources.packages.release_archive import ReleaseArchive
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.tree import DirectoryTree, HasBlobs, Tree

_VERSION_FILES = ("{package}/version/version", "PKG-INFO")


_REPOSITORY_FIX = "give a repository that has it: --repo PATH --ref REF"


class TreeNotFoundError(InputError):
    """The upstream tree is not available: the index has no such release, or no local clone has the commit."""


@dataclass(frozen=True, kw_only=True)
class UpstreamTree:
    """An upstream tree. version: "" if it is unknown. blobs: provides file contents by blob id.

    archive: the archive of a release that it was read from.
    """

    tree: Tree
    version: str
    blobs: HasBlobs | None = None
    archive: ReleaseArchive | None = None


def folder_target(path: Path, package: str, version: str = "") -> UpstreamTree:
    """The tree of a wheel, an sdist, a checkout, or the folder in which a package is installed."""
    tree = open_folder(path)
    return UpstreamTree(tree=tree, version=version or version_in(tree, package))


def open_folder(path: Path) -> Tree:
    """The tree of a folder, a wheel or an sdist; InputError if it does not exist."""
    if not path.exists():
        raise InputError(
            "this tree does not exist", where=Location(path), fix="give a folder, a wheel or an sdist"
        )
    return DirectoryTree(root=path) if path.is_dir() else open_archive(path)


def commit_target(repository: Repository, reference: str, package: str, version: str = "") -> UpstreamTree:
    """The tree of a commit. Its version is the one stated in the tree, followed by `@` and the commit."""
    tree = repository.tree(reference)
    found = version or version_in(tree, package)
    return UpstreamTree(
        tree=tree,
        blobs=repository,
        version=f"{found}@{tree.commit}" if found and "@" not in found else found,
    )


def version_target(package: str, version: str, releases: ReleaseFetcher) -> UpstreamTree:
    """The tree of a release, or of the commit after `@`. TreeNotFoundError when it is not available."""
    release, _at, commit = version.partition("@")
    source = TreeSource(package=package, version=release, commit=commit)
    return replace(upstream_tree(source, releases), version=version)


def upstream_tree(source: TreeSource, releases: ReleaseFetcher) -> UpstreamTree:
    """The tree that `source` names, of a release in its locked version.

    TreeNotFoundError when no index or local clone has it.
    """
    if not source.commit:
        try:
            version = releases.version(source.package, source.version)
            file, archive = releases.archive(source.package, version)
        except ReleaseNotFoundError as error:
            raise TreeNotFoundError(error.problems[0].what, fix=_REPOSITORY_FIX) from error
        return UpstreamTree(tree=open_archive(file), version=version, archive=archive)
    repository = find_mirror(releases.mirrors, source.commit)
    if repository is None:
        problem = mirrors_problem(releases.mirrors)
        raise TreeNotFoundError(
            f"no local clone of {source.package} has commit {source.commit[:12]}"
            + (f": {problem}" if problem else ""),
            fix=_REPOSITORY_FIX,
        )
    tree = repository.tree(source.commit)
    return UpstreamTree(tree=tree, blobs=tree, version=source.version)


def version_in(tree: Tree, package: str) -> str:
    """The version that a tree states in its version file or metadata, or ""."""
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
