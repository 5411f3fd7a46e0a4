"""The upstream repositories whose commits stacks and patches name, and their mirrors in the cache."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.builds.ownership.cache_use import CacheUse
from harness.errors import HarnessError
from harness.matrix.version_matrix import Matrix
from harness.patchstack.stacks.patch_stack import read_stack, upstreams
from harness.settings import Settings
from harness.sources.git.absent_objects import fetching_git
from harness.sources.git.fetched_mirror import MirrorUpdate, Upstream, update_mirror
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import checkout_folders, find_clone, find_mirror, own_mirror_folders
from harness.sources.git.remote_git import RemoteGit
from harness.workspace.planning.open_plan import patch_sources

LOGGER = logging.getLogger(__name__)
_ID = re.compile(r"[0-9a-f]{7,40}")
_COMMITS = re.compile(r"commit:([0-9a-f]{12,40})")


@dataclass(frozen=True, kw_only=True)
class NamedVersion:
    """A version with a commit or tag that a stack, a profile, a migration or a patch names."""

    axis: str
    version: str


def named_versions(settings: Settings, matrix: Matrix) -> tuple[NamedVersion, ...]:
    """All versions with a commit or tag that the matrix and the patches of this checkout name."""
    return tuple(dict.fromkeys([*_in_matrix(matrix), *_in_patches(settings, matrix)]))


def _in_matrix(matrix: Matrix) -> Iterator[NamedVersion]:
    for stack in matrix.stacks.values():
        yield from versions_of(stack.axes)
    for profile in matrix.profiles.values():
        for selection in profile.select:
            yield from versions_of(selection.fixed)
            for axis, values in selection.product.items():
                yield from (NamedVersion(axis=axis, version=value) for value in values if "@" in value)
    for migration in matrix.migrations.values():
        yield from versions_of(migration.to)


def versions_of(axes: Mapping[str, str]) -> Iterator[NamedVersion]:
    """Those versions of a cell that name a commit or tag."""
    yield from (NamedVersion(axis=axis, version=value) for axis, value in axes.items() if "@" in value)


def _in_patches(settings: Settings, matrix: Matrix) -> Iterator[NamedVersion]:
    patches = settings.patches
    for upstream in upstreams(patches):
        stack, _problems = read_stack(patches, upstream)
        for patch in stack.patches:
            for variant in patch.variants:
                for commit in _COMMITS.findall(variant.versions):
                    yield NamedVersion(axis=upstream, version=f"0@{commit}")
    for one in patch_sources(settings, matrix).placed:
        if _ID.fullmatch(one.pin):
            yield NamedVersion(axis=one.upstream, version=f"0@{one.pin}")


@dataclass(frozen=True, kw_only=True)
class NeededUpstreams:
    """The repositories to fetch.

    without_address: a sentence for each version whose repository the matrix does not name. in_own_clones: a
    sentence for each version that a clone of the user has, which is not fetched.
    """

    upstreams: tuple[Upstream, ...]
    without_address: tuple[str, ...]
    in_own_clones: tuple[str, ...]


def needed_upstreams(matrix: Matrix, versions: Iterable[NamedVersion]) -> NeededUpstreams:
    """The repositories that have these versions, with the addresses that this matrix names."""
    needed: dict[tuple[str, ...], tuple[set[str], set[str]]] = {}
    without, own = [], []
    for one in versions:
        axis = matrix.axes.get(one.axis)
        if axis is None or not axis.repository:
            without.append(f"{one.axis} {one.version} is not fetched: no repository is named for it")
            continue
        ref = one.version.partition("@")[2]
        commit = ref if _ID.fullmatch(ref) else ""
        if clone := _own_clone(axis.addresses, commit, ref):
            own.append(f"{one.axis} {one.version} is in the clone {clone.path}")
            continue
        commits, tags = needed.setdefault(axis.addresses, (set(), set()))
        (commits if commit else tags).add(ref)
    found = tuple(
        Upstream(addresses=addresses, commits=tuple(sorted(commits)), tags=tuple(sorted(tags)))
        for addresses, (commits, tags) in needed.items()
    )
    return NeededUpstreams(upstreams=found, without_address=tuple(without), in_own_clones=tuple(own))


def _own_clone(addresses: Sequence[str], commit: str, ref: str) -> Repository | None:
    """The user's clone that has the commit, or the tag, which is looked up in clones of this repository."""
    own = (*own_mirror_folders(), *checkout_folders())
    if commit:
        return find_mirror(own, commit)
    clones = filter(None, (find_clone(own, address) for address in addresses))
    return next((clone for clone in clones if clone.has_tag(ref)), None)


def update_mirrors(
    settings: Settings, needed: Sequence[Upstream], git: RemoteGit, *, if_absent: bool = False
) -> tuple[MirrorUpdate, ...]:
    """Fetch these repositories into the cache, one after the other."""
    unreachable: dict[str, str] = {}
    _in_use = CacheUse(settings.cache)
    return tuple(
        update_mirror(
            settings.fetched_mirrors,
            one,
            git,
            if_absent=if_absent,
            unreachable=unreachable,
            progress=LOGGER.info,
        )
        for one in needed
    )


def fetch_for_cells(settings: Settings, matrix: Matrix, cells: Iterable[Mapping[str, str]]) -> None:
    """Fetch the commits that these cells (their axes) name and that are not on this disk, if it is permitted.

    matrix: its addresses are used. A failure is logged: the checks that need the commit are then `not-run`.
    """
    if not settings.fetch:
        return
    versions = dict.fromkeys(one for axes in cells for one in versions_of(axes))
    needed = needed_upstreams(matrix, versions)
    try:
        updates = update_mirrors(settings, needed.upstreams, fetching_git(os.environ), if_absent=True)
    except HarnessError as error:
        LOGGER.warning("note: the upstream repositories were not fetched: %s", error)
        return
    for line in (line for update in updates for line in update_notes(update)):
        LOGGER.warning("note: %s", line)


def update_notes(update: MirrorUpdate) -> Iterator[str]:
    """What a user has to know about an update, a sentence each."""
    yield from update.notices
    if update.address and update.failures:
        yield from (f"{address} could not be used: {why}" for address, why in update.failures.items())
    by_reason: dict[str, list[str]] = {}
    for name, why in update.missing.items():
        by_reason.setdefault(why, []).append(name[:12] if _ID.fullmatch(name) else name)
    for why, names in by_reason.items():
        yield f"{', '.join(names)} could not be fetched, so checks that need it do not run: {why}"
