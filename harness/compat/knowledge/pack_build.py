"""Build a surface pack, or add to one: read the releases that a package index lists and the pack lacks."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email import message_from_bytes
from pathlib import Path

from packaging.version import Version

from harness.compat.knowledge.module_outline import outline
from harness.compat.knowledge.pack_file import PackagedFiles, PackedRelease, PackFile
from harness.compat.knowledge.raised_messages import (
    MESSAGES_OF_MINORS,
    RAISED,
    WITH_MESSAGES,
    message_lines,
)
from harness.compat.knowledge.surface_pack import ENTRY_POINTS, METADATA
from harness.digest import digest_bytes
from harness.errors import HarnessError, InfrastructureError
from harness.sources.packages.index_listing import ListedRelease
from harness.sources.packages.release_fetcher import Sources

NOT_YET = "not read yet"
#: The fields of a package's metadata that a pack has.
FIELDS = ("Requires-Python", "Requires-Dist", "Provides-Extra")
#: Files of another kind than modules that are stored as they are.
SCHEMAS = ".yaml"
COMPILED = (".so", ".pyd")


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What to add. since: of the releases uploaded before this date (YYYY-MM-DD), only the last one of each
    minor release is read. minors_since: none that was uploaded before this date is read.

    deadline: a time of `time.monotonic`; releases that would be read later are listed as not read.
    """

    since: str
    minors_since: str = ""
    deadline: float = float("inf")
    prereleases: bool = True


@dataclass
class _Outlines:
    """The outlines of modules by the digest of their source."""

    known: dict[str, bytes] = field(default_factory=dict)

    def of(self, source: bytes) -> bytes:
        digest = digest_bytes(source)
        if digest not in self.known:
            self.known[digest] = outline(source)
        return self.known[digest]


class PackageBuild:
    """The releases of a package while they are read. `files` is complete after every release.

    known: what a pack has already. report: called after each release with its version and what was read.
    """

    def __init__(
        self,
        package: str,
        known: PackagedFiles | None,
        fetch: Callable[[ListedRelease], Sources],
        plan: BuildPlan,
        report: Callable[[str], None],
    ) -> None:
        self._releases = {release.version: release for release in known.releases} if known else {}
        self._contents = dict(known.contents) if known else {}
        self._fetch, self._plan, self._report = fetch, plan, report
        self._package = package
        self._outlines = _Outlines()

    def add(self, listed: Sequence[ListedRelease]) -> None:
        """Read the releases that an index lists: the last of each minor release first, the newest first.

        A release that cannot be read is listed with the reason. One that was uploaded again with another
        archive is not read again. Development releases are left out if the package has others.
        """
        last = set(_last_of_minors([one.version for one in listed]).values())
        wanted = [one for one in listed if _is_wanted(one, self._plan, is_last=one.version in last)]
        finished = [one for one in wanted if not Version(one.version).is_devrelease]
        chosen = finished or wanted
        spoken = self._with_messages([one.version for one in chosen])
        for release in _in_order(chosen):
            has_messages = release.version in spoken
            if self._is_known(release.version, has_messages=has_messages):
                continue
            packed, files = self._read(release, has_messages=has_messages)
            if packed.unread and release.version in self._contents:
                # What a pack has of a release is not lost where only more of it could not be read.
                self._report(f"{release.version}: {packed.unread}")
                continue
            self._releases[release.version] = packed
            if not packed.unread:
                self._contents[release.version] = files
            self._report(f"{release.version}: {packed.unread or f'{len(files)} files'}")

    def _with_messages(self, versions: Sequence[str]) -> frozenset[str]:
        """Those of these releases whose messages a pack has."""
        if self._package not in WITH_MESSAGES:
            return frozenset()
        everything = self._package not in MESSAGES_OF_MINORS
        return frozenset(versions if everything else _last_of_minors(versions).values())

    def _is_known(self, version: str, *, has_messages: bool) -> bool:
        """Whether a release was read, by an npu-matrix that also read what it is asked for now."""
        stored = self._releases.get(version)
        if stored is None or stored.unread:
            return False
        return not has_messages or any(path.endswith(RAISED) for path in self._contents[version])

    def files(self) -> PackagedFiles:
        """Everything that was read, oldest release first. What a later release replaced is left out."""
        ordered = sorted(self._releases.values(), key=lambda one: Version(one.version))
        spoken = self._with_messages([one.version for one in ordered if not one.unread])
        contents = {
            version: files
            if version in spoken
            else {path: text for path, text in files.items() if not path.endswith(RAISED)}
            for version, files in self._contents.items()
        }
        return PackagedFiles(releases=tuple(ordered), contents=contents)

    def _read(
        self, release: ListedRelease, *, has_messages: bool
    ) -> tuple[PackedRelease, Mapping[str, bytes]]:
        packed = PackedRelease(version=release.version, uploaded=release.uploaded)
        if time.monotonic() >= self._plan.deadline:
            return packed.model_copy(update={"unread": NOT_YET}), {}
        try:
            sources = self._fetch(release)
            said = message_lines if has_messages else no_messages
            files = dict(packed_files(sources.file, self._outlines.of, said))
        except InfrastructureError as error:
            # Not a property of the release: it is read when the index can be reached again.
            self._report(f"{release.version}: {' '.join(str(error).split())[:200]}")
            return packed.model_copy(update={"unread": NOT_YET}), {}
        except (HarnessError, OSError, zipfile.BadZipFile) as error:
            return packed.model_copy(update={"unread": str(error).splitlines()[0][:200]}), {}
        archive = sources.archive
        stated = {"archive": archive.file, "sha256": archive.sha256} if archive else {}
        return packed.model_copy(update=stated), files


def _in_order(releases: Sequence[ListedRelease]) -> list[ListedRelease]:
    """The order of reading. If time is short, every minor release is there with its last patch release."""
    last = set(_last_of_minors([one.version for one in releases]).values())
    newest_first = list(reversed(releases))
    return sorted(newest_first, key=lambda one: one.version not in last)


def _last_of_minors(versions: Sequence[str]) -> dict[tuple[int, ...], str]:
    """The last release of each minor release; a prerelease only if there is no other one."""
    last: dict[tuple[int, ...], str] = {}
    for version in sorted(versions, key=lambda one: not Version(one).is_prerelease):
        last[Version(version).release[:2]] = version
    return last


def _is_wanted(release: ListedRelease, plan: BuildPlan, *, is_last: bool) -> bool:
    if Version(release.version).is_prerelease and not plan.prereleases:
        return False
    since = plan.minors_since or plan.since if is_last else plan.since
    return not release.uploaded or release.uploaded >= since


def no_messages(path: str, source: bytes) -> bytes:  # noqa: ARG001
    """Nothing, for packages whose messages a pack does not have."""
    return b""


def packed_files(
    sources: Path,
    outlined: Callable[[bytes], bytes] = outline,
    said: Callable[[str, bytes], bytes] = no_messages,
) -> Iterator[tuple[str, bytes]]:
    """The files of a release as a pack stores them, from a zip that `ReleaseFetcher` made.

    said: path and source of a module -> the messages of its exceptions.
    """
    with zipfile.ZipFile(sources) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".py"):
                source = archive.read(name)
                yield name, outlined(source)
                if messages := said(name, source):
                    yield f"{name}{RAISED}", messages
            elif name.endswith(COMPILED):
                yield name, b""
            elif name.endswith(SCHEMAS):
                yield name, archive.read(name)
            elif name.endswith((".dist-info/METADATA", "PKG-INFO")):
                yield METADATA, _metadata(archive.read(name))
            elif name.endswith(f".dist-info/{ENTRY_POINTS}"):
                yield ENTRY_POINTS, archive.read(name)


def _metadata(text: bytes) -> bytes:
    """The fields of `FIELDS`, sorted, without the description."""
    message = message_from_bytes(text)
    lines = sorted(f"{name}: {value}" for name in FIELDS for value in message.get_all(name, []))
    return "".join(f"{' '.join(line.split())}\n" for line in lines).encode()


def known_files(pack: PackFile | None, package: str) -> PackagedFiles | None:
    """What a pack has of a package."""
    return pack.package(package).files() if pack and package in pack.packages else None
