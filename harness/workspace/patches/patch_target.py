"""Selects what `npu-matrix patches` works on: the upstream, the source tree, the patch variants."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from harness.errors import InputError
from harness.matrix.model.cell import Cell
from harness.patchstack.apply.classify import LoadedPatch, read_patch
from harness.patchstack.stacks.patch_selection import (
    DEFAULT_UPSTREAM,
    CurrentVariants,
    choose_upstream,
    current_variants,
    load_own_stack,
    select_by_name,
    variants_for,
)
from harness.patchstack.stacks.upstream_tree import (
    TreeNotFoundError,
    UpstreamTree,
    commit_target,
    folder_target,
    open_folder,
    version_in,
    version_target,
)
from harness.settings import Settings
from harness.sources.git.git_repository import GitTree, Repository
from harness.sources.git.mirrors import mirror_folders
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.downloads import announced_fetch
from harness.workspace.planning.open_plan import open_matrix, patch_sources


@dataclass(frozen=True, kw_only=True)
class TreeSelection:
    """The options that select a source tree and the patches for it.

    folder: the patches, by default patches/ of the checkout. upstream: its patch series. The tree is a
    release (version), a folder or archive (path), or a commit of a clone (repo, ref). With these two,
    `version` selects the patch variants if the tree has no version.
    """

    folder: Path | None = None
    upstream: str = ""
    version: str = ""
    path: Path | None = None
    repo: Path | None = None
    ref: str = "HEAD"

    def __post_init__(self) -> None:
        if self.repo is None and self.ref != "HEAD":
            raise InputError("--ref needs --repo", fix="name the clone or bare mirror that has this commit")

    @property
    def has_tree(self) -> bool:
        """Whether any option names a tree."""
        return bool(self.version or self.path or self.repo)

    def patches(self, settings: Settings) -> Path:
        """The folder of the patches."""
        return self.folder or settings.patches


def resolve_target(settings: Settings, selection: TreeSelection) -> tuple[UpstreamTree, str]:
    """The selected source tree, and the name of its upstream."""
    patches, upstream, version = selection.patches(settings), selection.upstream, selection.version
    path, repo, ref = selection.path, selection.repo, selection.ref
    if path and repo:
        raise InputError("--tree and --repo exclude each other", fix="give only one of them")
    if path:
        package = upstream_of_patches(patches, choose_upstream(patches, upstream, open_folder(path)))
        return folder_target(path, package, version), package
    if repo:
        repository = Repository(repo)
        package = upstream_of_patches(patches, choose_upstream(patches, upstream, repository.tree(ref)))
        return commit_target(repository, ref, package, version), package
    package = upstream_of_patches(patches, choose_upstream(patches, upstream))
    releases = _releases(settings, f"{package} {version}")
    try:
        return version_target(package, version, releases), package
    except TreeNotFoundError:
        if "@" not in version:
            releases.require(package, version)
        raise


def _releases(settings: Settings, what: str) -> ReleaseFetcher:
    return ReleaseFetcher(cache=settings.cache, command=announced_fetch(what), mirrors=mirror_folders())


def upstream_of_patches(patches: Path, upstream: str) -> str:
    """The upstream of the patch stack in a folder; without a stack, `upstream` or verl."""
    stack = load_own_stack(patches, upstream) if patches.is_dir() else None
    return stack.upstream if stack else upstream or DEFAULT_UPSTREAM


def variants_for_target(
    patches: Path, target: UpstreamTree, package: str, names: Sequence[str]
) -> tuple[LoadedPatch, ...]:
    """The variants of the named patches for a tree, in order."""
    return select_by_name(variants_for(patches, target.version, package), names)


def matrix_versions(settings: Settings, upstream: str) -> list[str]:
    """The versions of an upstream in the matrix, newest first; empty when it is not an axis."""
    if not settings.path("matrix").is_file():
        return []
    axis = upstream.replace("-", "_")
    found = {cell.axes[axis] for cell in open_matrix(settings).all_cells if axis in cell.axes}
    return sorted(found, key=lambda version: (Version(version.partition("@")[0]), version), reverse=True)


def trees_of_cell(
    settings: Settings, cell: Cell
) -> list[tuple[tuple[LoadedPatch, ...], UpstreamTree | None, str]]:
    """For each upstream that the cell has patches for: the patch variants, and the tree or why there is
    none."""
    found: list[tuple[tuple[LoadedPatch, ...], UpstreamTree | None, str]] = []
    sources = patch_sources(settings, open_matrix(settings))
    for name, version in cell.axes.items():
        variants = sources.select(name, cell.axes)
        if not variants:
            continue
        unread = next((patch.unread for patch in variants if patch.unread), None)
        if unread:
            found.append(((), None, unread.reason))
            continue
        readables = tuple(read_patch(patch.id, patch.data) for patch in variants)
        try:
            target = version_target(name, version, _releases(settings, f"{name} {version}"))
            found.append((readables, target, ""))
        except InputError as error:
            found.append((readables, None, error.problems[0].what))
    return found


def patches_in_cells(settings: Settings, names: Sequence[str]) -> tuple[LoadedPatch, ...]:
    """The patches of the section `patches` of matrix.yaml with these names or globs; () if there is none."""
    if not settings.path("matrix").is_file():
        return ()
    matrix = open_matrix(settings)
    sources = patch_sources(settings, matrix)
    patches = [one.patch for one in sources.placed_in(cell.axes for cell in matrix.all_cells)]
    return tuple(
        read_patch(patch.id, patch.data)
        for patch in patches
        if any(fnmatch.fnmatchcase(patch.id, name) for name in names)
    )


def variants_for_head(settings: Settings, patches: Path, package: str, tree: GitTree) -> CurrentVariants:
    """The patch variants for the version of a development head, else for the newest release in the matrix."""
    head = version_in(tree, package)
    releases = [version for version in matrix_versions(settings, package) if "@" not in version]
    versions = [f"{head}@{tree.commit}"] if head else []
    return current_variants(patches, [*versions, *releases[:1]], package)
