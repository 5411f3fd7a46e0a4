"""What the builds of a lock start from: complete source trees, and the build tools that these need.

A source package on the index may lack the submodules of its repository; such a package is built from the
repository instead. The build tools of all trees are resolved together with the pins and become part of the
lock, as the Dockerfiles of vllm-ascend and verl do with `pip install --no-build-isolation`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from harness.builds.lock.cell_lock import WHEELS_BY, CellLock, LockedSource
from harness.builds.lock.extra_requirements import PinnedStack, resolve_with_pins
from harness.errors import HarnessError, InfrastructureError, InputError
from harness.sources.git.mirrors import find_source
from harness.sources.packages.archive import open_archive
from harness.sources.packages.index_settings import IndexSettings, index_environment
from harness.sources.packages.project_file import read_project, strings, table
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.tree import Tree

SUBMODULES = ".gitmodules"
# What pip assumes for a tree without `build-system.requires`.
DEFAULT_TOOLS = ("setuptools>=40.8.0", "wheel")
# setuptools 82 removed pkg_resources, which builds of these stacks import; verl's Dockerfiles pin 80.10.2.
WITH_PKG_RESOURCES = "setuptools<81"


@dataclass(frozen=True, kw_only=True)
class PackageRepository:
    """Where the releases of a package are developed. tag: the tag of the locked version."""

    url: str
    tag: str


def with_complete_sources(
    lock: CellLock,
    releases: ReleaseFetcher,
    repositories: Mapping[str, PackageRepository],
    mirrors: Sequence[Path],
    environ: Mapping[str, str],
) -> CellLock:
    """The lock with complete sources and with the tools of its builds.

    repositories: package -> its repository. What cannot be read now (no index, no mirror) stays as it is, and
    `lock_notices` reports it.
    """
    trees = dict(_archive_trees(lock, releases))
    lacking = {name: paths for name, tree in trees.items() if (paths := missing_submodules(tree))}
    replaced = [
        LockedSource(
            package=name,
            version=package.version,
            commit=repositories[name].tag,
            repository=repositories[name].url,
            env=lock.build_env_of(name),
        )
        for package in lock.packages
        if (name := package.name) in lacking and name in repositories
    ]
    incomplete = {name: paths for name, paths in lacking.items() if name not in repositories}
    complete = replace(lock.with_sources(replaced), incomplete=incomplete)
    for source in complete.from_source:
        repository = find_source(mirrors, source.commit, source.repository) if mirrors else None
        if repository is not None and source.package not in WHEELS_BY:
            trees[source.package] = repository.tree(source.commit)
    return _with_build_tools(complete, trees, index_environment(environ))


def missing_submodules(tree: Tree) -> tuple[str, ...]:
    """The submodules that `.gitmodules` names and of which the tree has no file."""
    if not tree.mode(SUBMODULES):
        return ()
    text = tree.read(SUBMODULES).decode("utf-8", "replace")
    paths = re.findall(r"^\s*path\s*=\s*(\S+)\s*$", text, re.MULTILINE)
    return tuple(path for path in paths if not tree.is_folder(path))


def build_requirements(tree: Tree) -> tuple[str, ...]:
    """What `build-system.requires` of a source tree lists; () if it cannot be read."""
    try:
        system = table(read_project(tree), "build-system")
        lines = strings(system["requires"]) if "requires" in system else DEFAULT_TOOLS
        for line in lines:
            Requirement(line)
    except (InputError, InvalidRequirement):
        return ()
    return lines


def _archive_trees(lock: CellLock, releases: ReleaseFetcher) -> Iterator[tuple[str, Tree]]:
    """Package -> the tree of its source package, for packages that are compiled and those without wheel."""
    for package in lock.packages:
        if package.name not in {*lock.compiled, *lock.without_wheel}:
            continue
        try:
            found = releases.sdist(package.name, package.version)
            if found and f"sha256:{found[1].sha256}" in package.hashes:
                yield package.name, open_archive(found[0])
        except HarnessError:
            continue


def _with_build_tools(lock: CellLock, trees: Mapping[str, Tree], settings: IndexSettings) -> CellLock:
    needed = {name: listed for name, tree in trees.items() if (listed := build_requirements(tree))}
    if not needed:
        return lock
    lines = [line for of_package in needed.values() for line in of_package]
    older = [WITH_PKG_RESOURCES, *lines]
    attempts: list[tuple[list[str], IndexSettings]] = [
        (older, settings.with_indexes(lock.indexes)),
        (older, settings),
        (lines, settings),
    ]
    for wanted, indexes in attempts:
        try:
            # The builds may need an older setuptools than the cell, which a later layer installs.
            resolved = resolve_with_pins(PinnedStack.of(lock), wanted, indexes, free={"setuptools"})
        except InfrastructureError:
            continue
        # Also those that the lock pins: a later layer, or the same call of pip, would install them too late.
        # Only the layer of torch is there before every build.
        below = {package.name for name, packages in lock.layers() if name == "torch" for package in packages}
        sources = {one.package for one in lock.from_source}
        elsewhere = {*lock.omitted, *sources, *(below - {"setuptools"})}
        tools = tuple(package for package in resolved if package.name not in elsewhere)
        return replace(lock, build_tools=tools, tooled=tuple(sorted(needed)))
    return lock
