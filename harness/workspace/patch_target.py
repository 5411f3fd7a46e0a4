"""What the commands of `npu-matrix patches` work on: whose stack, which tree, which bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.patchstack.stacks.target import Current
    from harness.sources.git.git_trees import GitTree

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.settings import Settings
from harness.sources.git.mirrors import mirrors_folder
from harness.workspace.downloads import fetcher

if TYPE_CHECKING:
    from harness.matrix.cells.cell import Cell
    from harness.patchstack.apply.classify import Readable
    from harness.patchstack.stacks.upstream_tree import Target


def target_of(
    settings: Settings,
    patches: Path,
    upstream: str,
    version: str,
    path: Path | None,
    repo: Path | None,
    ref: str,
) -> tuple[Target, str]:
    """The tree that is asked for, and the upstream it is of."""
    from harness.patchstack.stacks.upstream_tree import commit_target, folder_target, version_target, whose

    if path and repo:
        raise click.UsageError("--tree and --repo exclude each other")
    if path:
        from harness.patchstack.stacks.upstream_tree import open_folder

        package = package_of(patches, whose(patches, upstream, open_folder(path)))
        return folder_target(path, package, version), package
    if repo:
        from harness.sources.git.git_repository import Repository

        repository = Repository(repo)
        package = package_of(patches, whose(patches, upstream, repository.tree(ref)))
        return commit_target(repository, ref, package, version), package
    package = package_of(patches, whose(patches, upstream))
    fetch = fetcher(f"{package} {version}")
    target = version_target(package, version, cache=settings.cache, command=fetch, mirrors=mirrors_folder())
    return target, package


def package_of(patches: Path, upstream: str) -> str:
    """The upstream of the stack in a folder; of patches in another format verl, unless one is named."""
    from harness.patchstack.stacks.upstream_tree import DEFAULT_UPSTREAM, own_stack

    stack = own_stack(patches, upstream) if patches.is_dir() else None
    return stack.upstream if stack else upstream or DEFAULT_UPSTREAM


def chosen_for(patches: Path, target: Target, package: str, names: Sequence[str]) -> tuple[Readable, ...]:
    """The bodies for a tree, in order, of the named patches."""
    from harness.patchstack.stacks.upstream_tree import bodies_for, named

    return named(bodies_for(patches, target.version, package), names)


def matrix_versions(settings: Settings, upstream: str) -> list[str]:
    """The versions of an upstream in the matrix, newest first; none when there is no such axis."""
    from packaging.version import Version

    from harness.workspace.open_plan import open_matrix

    if not settings.path("matrix").is_file():
        return []
    axis = upstream.replace("-", "_")
    found = {cell.axes[axis] for cell in open_matrix(settings).all_cells if axis in cell.axes}
    return sorted(found, key=lambda version: (Version(version.partition("@")[0]), version), reverse=True)


def trees_of_cell(settings: Settings, cell: Cell) -> list[tuple[tuple[Readable, ...], Target | None, str]]:
    """Of each upstream whose patches a cell has: the bodies, the tree, or why there is none at hand."""
    from harness.errors import InputError
    from harness.patchstack.apply.classify import read_patch
    from harness.patchstack.stacks.patch_stack import load_stack, upstreams
    from harness.patchstack.stacks.upstream_tree import version_target

    found: list[tuple[tuple[Readable, ...], Target | None, str]] = []
    patches = settings.root / "patches"
    for name in upstreams(patches):
        version = cell.axes.get(name, "")
        bodies = load_stack(patches, name).select(version) if version else ()
        if not bodies:
            continue
        readables = tuple(read_patch(patch.id, patch.data) for patch in bodies)
        fetch = fetcher(f"{name} {version}")
        try:
            target = version_target(
                name, version, cache=settings.cache, command=fetch, mirrors=mirrors_folder()
            )
            found.append((readables, target, ""))
        except InputError as error:
            found.append((readables, None, error.problems[0].what))
    return found


def bodies_for_head(settings: Settings, patches: Path, package: str, tree: GitTree) -> Current:
    """The bodies for the version a development head says it is, else for the newest release in the matrix."""
    from harness.patchstack.stacks.target import current_bodies, version_in

    head = version_in(tree, package)
    releases = [version for version in matrix_versions(settings, package) if "@" not in version]
    versions = [f"{head}@{tree.commit}"] if head else []
    return current_bodies(patches, [*versions, *releases[:1]], package)
