"""Which archives the package index has replaced by others of the same name since they were read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from harness.errors import HarnessError
from harness.sources.packages.index_lookup import (
    ANY_PRERELEASE,
    PackageIndex,
    PublishedFile,
    ReleaseNotFoundError,
)
from harness.sources.packages.release_archive import ReleaseArchive, TargetPlatform

#: Archives by the platform that they were chosen for.
ArchivesRead = Mapping[TargetPlatform, Collection[ReleaseArchive]]


@dataclass(frozen=True, kw_only=True)
class IndexChanges:
    """What the index has now of archives that were read.

    replaced: archive -> the SHA-256 that the index now states for a file of this name. asked: for how many
    archives the index was asked. unreached: those of which nothing is known, because it did not respond.
    """

    replaced: Mapping[ReleaseArchive, str]
    asked: int
    unreached: frozenset[ReleaseArchive]


def replaced_archives(read: ArchivesRead, index: PackageIndex) -> IndexChanges:
    """Ask the index for these archives; its pages are requested again.

    A file that the index does not have any more, or without a digest, was not replaced.
    """
    replaced: dict[ReleaseArchive, str] = {}
    unreached: set[ReleaseArchive] = set()
    refreshed: set[str] = set()
    asked = 0
    for target, archives in read.items():
        for group in _without_conflicts(archives):
            asked += len(group)
            published = _published(group, target, index, refreshed, unreached)
            current = {(file.package, file.name): file.sha256 for file in published}
            replaced |= {
                archive: sha256
                for archive in group
                if (sha256 := current.get((archive.package, archive.file), "")) and sha256 != archive.sha256
            }
    return IndexChanges(replaced=replaced, asked=asked, unreached=frozenset(unreached))


def _without_conflicts(archives: Iterable[ReleaseArchive]) -> list[list[ReleaseArchive]]:
    """Groups of archives with one version of each package, because uv selects only one."""
    groups: list[dict[str, ReleaseArchive]] = []
    for archive in sorted({archive for archive in archives if archive.sha256}, key=str):
        group = next((one for one in groups if archive.package not in one), None)
        if group is None:
            groups.append(group := {})
        group[archive.package] = archive
    return [list(group.values()) for group in groups]


def _published(
    archives: list[ReleaseArchive],
    target: TargetPlatform,
    index: PackageIndex,
    refreshed: set[str],
    unreached: set[ReleaseArchive],
) -> tuple[PublishedFile, ...]:
    """The files of these releases on the index. If a release is not found, the others are.

    refreshed, unreached: the packages whose pages were requested, and the archives that could not be asked
    for, are added.
    """
    names = {archive.package for archive in archives} - refreshed
    refresh = [argument for name in sorted(names) for argument in ("--refresh-package", name)]
    lines = [f"{archive.package}=={archive.version}" for archive in archives]
    try:
        files = index.files(lines, target, (*ANY_PRERELEASE, *refresh))
    except HarnessError as error:
        if not isinstance(error, ReleaseNotFoundError):
            unreached.update(archives)
            return ()
        if len(archives) == 1:
            return ()
        half = len(archives) // 2
        parts = (
            _published(part, target, index, refreshed, unreached)
            for part in (archives[:half], archives[half:])
        )
        return tuple(file for part in parts for file in part)
    refreshed |= names
    return files
