"""Which archives the package index has replaced by others of the same name since they were read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

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


def replaced_archives(read: ArchivesRead, index: PackageIndex) -> dict[ReleaseArchive, str]:
    """Archive -> the SHA-256 that the index now states for a file of this name.

    Index pages are requested again. A file that the index does not have any more, or without a digest, was
    not replaced. Nothing is known to be replaced if the index cannot be reached.
    """
    replaced: dict[ReleaseArchive, str] = {}
    refreshed: set[str] = set()
    for target, archives in read.items():
        for group in _without_conflicts(archives):
            published = _published(group, target, index, refreshed)
            current = {(file.package, file.name): file.sha256 for file in published}
            replaced |= {
                archive: sha256
                for archive in group
                if (sha256 := current.get((archive.package, archive.file), "")) and sha256 != archive.sha256
            }
    return replaced


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
    archives: list[ReleaseArchive], target: TargetPlatform, index: PackageIndex, refreshed: set[str]
) -> tuple[PublishedFile, ...]:
    """The files of these releases on the index. If a release is not found, the others are."""
    names = {archive.package for archive in archives} - refreshed
    refresh = [argument for name in sorted(names) for argument in ("--refresh-package", name)]
    lines = [f"{archive.package}=={archive.version}" for archive in archives]
    try:
        files = index.files(lines, target, (*ANY_PRERELEASE, *refresh))
    except HarnessError as error:
        if len(archives) == 1 or not isinstance(error, ReleaseNotFoundError):
            return ()
        half = len(archives) // 2
        parts = (_published(part, target, index, refreshed) for part in (archives[:half], archives[half:]))
        return tuple(file for part in parts for file in part)
    refreshed |= names
    return files
