"""Fetches releases and commits, with a cache in which every file is verified before this process reads it.

An archive is identified by its SHA-256, never by name and version. Of a release in the lock, exactly the
locked archive is used; of other releases, the one that the package index serves now.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

from packaging.version import Version

from harness.digest import digest_bytes, digest_file
from harness.errors import InfrastructureError, InputError, Location
from harness.sources.git.mirrors import find_mirror
from harness.sources.packages.archive_cache import VERIFIED, new_file
from harness.sources.packages.index_lookup import (
    FINAL_IF_POSSIBLE,
    PackageIndex,
    PublishedFile,
    ReleaseNotFoundError,
    require_release_name,
)
from harness.sources.packages.index_settings import IndexSettings, index_environment, local_path
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.nearest_releases import require_release
from harness.sources.packages.program_runner import ProgramRunner
from harness.sources.packages.release_archive import ReleaseArchive, TargetPlatform, installer_rank
from harness.sources.packages.release_sources import (
    archive_sources,
    commit_sources,
    update_sources,
    write_wheel_part,
)
from harness.sources.packages.remote_file import (
    TOO_LARGE,
    NoRangesError,
    download,
    download_file,
    open_remote,
)
from harness.sources.redact import redact_text

#: Larger wheels are read in part; their whole archive is only downloaded without range support.
MAX_WHOLE_WHEEL_BYTES = 16 << 20
MAX_SDIST_BYTES = 128 << 20
MAX_WHEEL_BYTES = 96 << 20
MAX_ARCHIVE_BYTES = 1 << 30
MAX_METADATA_BYTES = 1 << 20
NO_RANGES = "the index does not support range requests"
#: Prefixes of the zips with sources; change one when its zips are written differently.
TEXT, PART, COMMIT = "text-7", "part-3", "commit-2"


class TooLargeError(InfrastructureError):
    """The index does not support range requests, and the files of this release are too large to download."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """A zip with the sources of a release or commit. archive: what it was made from; None for a commit."""

    file: Path
    archive: ReleaseArchive | None = None


@dataclass(frozen=True, kw_only=True)
class ReleaseFetcher:
    """Fetches releases from the index, and commits from clones below `mirrors`.

    target: the platform that archives are for, None for any. indexes: indexes in addition to the user's.
    locked: package -> its archive in the lock of a cell. offline: do not use the network.
    """

    cache: Path
    command: ProgramRunner
    mirrors: Sequence[Path] = ()
    target: TargetPlatform | None = None
    indexes: tuple[str, ...] = ()
    locked: Mapping[str, ReleaseArchive] = field(default_factory=dict)
    offline: bool = False

    def version(self, package: str, planned: str) -> str:
        """The locked version of a package if it is another one than `planned`, else `planned`."""
        locked = self.locked.get(normal_name(package))
        return planned if locked is None or _is_version(locked.version, planned) else locked.version

    def archive(self, package: str, version: str) -> tuple[Path, ReleaseArchive]:
        """The wheel of a release, or its locked sdist, as a whole.

        ReleaseNotFoundError if the index has no such wheel, InfrastructureError if it cannot be reached.
        """
        locked = self._locked(package, version)
        if locked and (cached := self._cached(locked.file, locked.sha256)):
            return cached, locked
        files = [file for file in self._files(package, version) if locked or file.name.endswith(".whl")]
        if not files:
            raise ReleaseNotFoundError(
                f"the package index has no wheel of {package} {version}",
                fix="correct the version, or give the upstream repository as a mirror",
            )
        try:
            path, sha256 = self._whole(files[0], MAX_ARCHIVE_BYTES)
        except OSError as error:
            raise _unreachable(files[0].name, redact_text(str(error))) from error
        return path, files[0].archive(sha256)

    def sdist(self, package: str, version: str) -> tuple[Path, ReleaseArchive] | None:
        """The source package of a release as a whole, or None if the index has none.

        ReleaseNotFoundError if the index does not have the release, InfrastructureError if it or the file
        cannot be reached.
        """
        require_release_name(package, version)
        files = self._index.files([f"{package}=={version}"])
        file = next((one for one in files if not one.name.endswith(".whl")), None)
        if file is None:
            return None
        try:
            path, sha256 = self._whole(file, MAX_SDIST_BYTES)
        except OSError as error:
            raise _unreachable(file.name, redact_text(str(error))) from error
        return path, file.archive(sha256)

    def sources(self, package: str, version: str) -> Sources:
        """The sources of a release as they would be installed.

        ReleaseNotFoundError if no index has it, InputError for a damaged or malicious archive,
        InfrastructureError if the index is not reachable, TooLargeError for a large file without range
        support.
        """
        require_release_name(package, version)
        locked = self._locked(package, version)
        if locked and (cached := self._cached(locked.file, locked.sha256)):
            return self._text(cached, locked)
        if locked and VERIFIED.contains(part := self._part(locked.sha256), locked.sha256):
            return Sources(file=part, archive=replace(locked, in_part=True))
        return self.sources_of_files(package, version, self._files(package, version))

    def sources_of_files(self, package: str, version: str, files: Sequence[PublishedFile]) -> Sources:
        """The sources of a release from its files on an index, the preferred first. Errors as `sources`."""
        wheel = next((file for file in files if file.name.endswith(".whl")), None)
        sdist = next((file for file in files if not file.name.endswith(".whl")), None)
        attempts: list[Callable[[], Sources]] = [partial(self._wheel_sources, wheel)] if wheel else []
        for file, limit in ((sdist, MAX_SDIST_BYTES), (wheel, MAX_WHEEL_BYTES)):
            attempts += [partial(self._whole_sources, file, limit)] if file else []
        failures = []
        for attempt in attempts:
            done = _attempt(attempt)
            if isinstance(done, Sources):
                return done
            failures.append(done)
        if NO_RANGES in failures and len(failures) > 1 and all(TOO_LARGE in one for one in failures[1:]):
            raise TooLargeError(
                f"the sources of {package} {version} could not be fetched", why="; ".join(failures)
            )
        raise _unreachable(f"the sources of {package} {version}", "; ".join(dict.fromkeys(failures)))

    def find(self, package: str, version: str, commit: str = "") -> Sources | None:
        """The sources of a release or commit, None if they are not available."""
        if commit:
            return self.commit(commit)
        try:
            return self.sources(package, version)
        except (ReleaseNotFoundError, TooLargeError):
            return None

    def commit(self, commit: str) -> Sources | None:
        """The sources of a commit, None if no clone or bare mirror has it."""
        repository = find_mirror(self.mirrors, commit)
        if repository is None:
            return None
        tree = repository.tree(commit)
        target = self._folder / f"{COMMIT}-{tree.commit}.zip"
        return Sources(file=_verified_zip(target, tree.commit, partial(commit_sources, tree)))

    def newest_version(self, requirement: str) -> str:
        """The newest final release for `requirement` (`name>=1,<2`); same errors as `sources`."""
        return self._index.files([requirement], None, FINAL_IF_POSSIBLE)[0].version

    def require(self, package: str, version: str) -> None:
        """ReleaseNotFoundError with the nearest releases as its remedy, unless the index has this release.

        For versions that a user gives. InfrastructureError if the index is not reachable.
        """
        require_release(self._index, package, version)

    def index_metadata(self, package: str, version: str) -> bytes:
        """The metadata that the index serves separately from the wheel (PEP 658); empty without it."""
        return self.metadata_of(self._files(package, version)[0])

    def metadata_of(self, file: PublishedFile) -> bytes:
        """The same for a file that the index lists."""
        try:
            url = file.url.partition("#")[0]
            return download(f"{url}.metadata", self._settings, MAX_METADATA_BYTES)
        except OSError:
            return b""

    def listed(self, releases: Sequence[tuple[str, str]]) -> tuple[PublishedFile, ...]:
        """The files for the target of several releases (name, version); errors as `sources`.

        ReleaseNotFoundError if the index does not have one of them.
        """
        for name, version in releases:
            require_release_name(name, version)
        return self._index.files([f"{name}=={version}" for name, version in releases], self.target)

    @cached_property
    def _settings(self) -> IndexSettings:
        return index_environment(os.environ).with_indexes(self.indexes)

    @property
    def _folder(self) -> Path:
        return self.cache / "sources"

    @property
    def _index(self) -> PackageIndex:
        return PackageIndex(settings=self._settings, command=self.command, offline=self.offline)

    def _locked(self, package: str, version: str) -> ReleaseArchive | None:
        require_release_name(package, version)
        found = self.locked.get(normal_name(package))
        return found if found and _is_version(found.version, version) else None

    def _files(self, package: str, version: str) -> list[PublishedFile]:
        """The locked file of the release, else its files with the one for the target first."""
        requirement, locked = f"{package}=={version}", self._locked(package, version)
        if locked:
            requirement = f"{package}=={locked.version}"
        files: tuple[PublishedFile, ...] = ()
        for target in dict.fromkeys((self.target, None)):
            try:
                files = self._index.files([requirement], target)
            except ReleaseNotFoundError:
                # Only other platforms have it, or with a lock: the index does not have it any more.
                if target is None and not locked:
                    raise
                continue
            if not locked:
                if target:
                    return sorted(files, key=lambda file: installer_rank(file.name), reverse=True)
                return sorted(files, key=portability)
            if same := [file for file in files if file.sha256 == locked.sha256]:
                return same[:1]
        raise InfrastructureError(
            f"the package index does not have the locked archive {locked}",
            why="it serves other files for this release: "
            + (", ".join(str(file.archive("")) for file in files) or "none"),
            fix="resolve the cell again: npu-matrix run --check resolve --fresh",
        )

    def _cached(self, name: str, sha256: str) -> Path | None:
        path = self._folder / sha256 / Path(name).name
        return path if sha256 and VERIFIED.has_digest(path, sha256) else None

    def _part(self, identity: str) -> Path:
        return self._folder / f"{PART}-{identity}.zip"

    def _whole(self, file: PublishedFile, limit: int) -> tuple[Path, str]:
        """The file and its digest: on this machine, in the cache or downloaded. OSError if that fails."""
        local = local_path(file.url)
        if local is not None:
            sha256 = file.sha256 or digest_file(local)
            if not VERIFIED.has_digest(local, sha256):
                local.stat()
                raise _other_file(file)
            return local, sha256
        if cached := self._cached(file.name, file.sha256):
            return cached, file.sha256
        if self.offline:
            raise InputError(f"{file.name} would have to be downloaded")
        # Without a digest on the index nothing can verify a cached file, so it is downloaded again.
        folder = file.sha256 or f"unverified-{digest_bytes(file.url.encode())}"
        target = self._folder / folder / Path(file.name).name
        with new_file(target) as incoming:
            download_file(file.url, self._settings, incoming, limit)
            sha256 = digest_file(incoming)
            if file.sha256 and sha256 != file.sha256:
                raise _other_file(file)
        VERIFIED.add(target, sha256)
        return target, sha256

    def _wheel_sources(self, wheel: PublishedFile) -> Sources:
        """The sources of a wheel: of the whole archive if it is small or local, else read in part."""
        if local_path(wheel.url) is not None or self._cached(wheel.name, wheel.sha256):
            return self._whole_sources(wheel, MAX_WHEEL_BYTES)
        identity = wheel.sha256 or digest_bytes(wheel.url.encode())
        target = self._part(identity)
        if not VERIFIED.contains(target, identity):
            if self.offline:
                raise InputError(f"{wheel.name} would have to be downloaded")
            with open_remote(wheel.url, self._settings) as stream:
                if stream.size <= MAX_WHOLE_WHEEL_BYTES:
                    return self._whole_sources(wheel, MAX_WHOLE_WHEEL_BYTES)
                write_wheel_part(stream, wheel.name, target)
            VERIFIED.add(target, identity)
        return Sources(file=target, archive=wheel.archive("", in_part=True))

    def _whole_sources(self, file: PublishedFile, limit: int) -> Sources:
        path, sha256 = self._whole(file, limit)
        return self._text(path, file.archive(sha256))

    def _text(self, archive: Path, made_from: ReleaseArchive) -> Sources:
        target = self._folder / f"{TEXT}-{made_from.sha256}.zip"
        text = _verified_zip(target, made_from.sha256, partial(archive_sources, archive))
        return Sources(file=text, archive=made_from)


def _attempt(fetch: Callable[[], Sources]) -> Sources | str:
    """The result of `fetch`, or why it failed."""
    try:
        return fetch()
    except NoRangesError:
        return NO_RANGES
    except OSError as error:
        return redact_text(str(error)) or type(error).__name__


def _verified_zip(target: Path, made_from: str, contents: Callable[[], Iterator[tuple[str, bytes]]]) -> Path:
    """`target` after it was compared with the contents it was made from, once in this process."""
    if not VERIFIED.contains(target, made_from):
        update_sources(target, contents)
        VERIFIED.add(target, made_from)
    return target


def _is_version(locked: str, wanted: str) -> bool:
    """Whether the locked version is the wanted one; a local part (`2.8.0+cpu`) is one of the locked only."""
    try:
        found, requested = Version(locked), Version(wanted)
    except ValueError:  # InvalidVersion, or a number with thousands of digits
        return locked == wanted
    return found == requested or (requested.local is None and found.public == requested.public)


def portability(file: PublishedFile) -> tuple[int, str]:
    """Sort key without a target: pure Python wheels first, then Linux wheels, then by name; sdists last."""
    if not file.name.endswith(".whl"):
        return 3, file.name
    return (0 if "-none-any" in file.name else 1 if "linux" in file.name else 2), file.name


def _other_file(file: PublishedFile) -> InputError:
    return InputError(
        "this file is not the one that the index lists",
        where=Location(file.name),
        why="its SHA-256 differs",
        fix="report it to the maintainer of the index, or use another index",
    )


def _unreachable(what: str, why: str) -> InfrastructureError:
    return InfrastructureError(
        f"{what} could not be fetched",
        why=why,
        fix="check the network and pip's index settings (`pip config list`), then run again",
    )
