"""The Python sources and schemas of a published release, without its compiled files.

They are cached as a small zip archive. Only these members of a wheel are fetched, with range requests: a few
MB of a wheel of 400 MB.
"""

from __future__ import annotations

import email
import hashlib
import io
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

import tomllib
from packaging.requirements import InvalidRequirement, Requirement

from harness.errors import HarnessError, InfrastructureError, InputError, Location
from harness.sources.git.mirrors import find_mirror
from harness.sources.packages.archive import installed_path, open_archive, open_zip
from harness.sources.packages.fetch_failure import fetch_failure, machine_failure
from harness.sources.packages.index_settings import IndexSettings, index_environment, uv_binary
from harness.sources.packages.pip_download import (
    ReleaseNotFoundError,
    RunCommand,
    cached_fetch,
    require_release_name,
)
from harness.sources.packages.remote_file import TOO_LARGE, NoRangesError, download, open_remote
from harness.sources.packages.uv_errors import UvFailureKind, parse_uv_failure
from harness.sources.redact import redact_text, redact_url
from harness.sources.tree import path_problem

LOCATE_TIMEOUT_S = 120.0
# Only the names of compiled modules are kept: they show that a module exists, not what it defines.
COMPILED = re.compile(r".*\.(?:so|pyd)")
SOURCE_FILES = re.compile(r".*\.py|torch_npu/csrc/aten/.*\.yaml|[^/]+\.dist-info/METADATA")
# Tests and examples are not part of the API.
EXCLUDED_FILES = re.compile(
    r"(?:tests?|examples?|docs?|benchmarks?)/.*|.*/(?:tests|testing|_vendor|thirdparty_files)/.*"
)
MAX_MEMBER_BYTES = 8 << 20
MAX_TOTAL_BYTES = 512 << 20
MAX_SDIST_BYTES = 128 << 20
MAX_WHEEL_BYTES = 96 << 20
MAX_MEMBERS = 200_000
ABSENT = (
    UvFailureKind.MISSING_VERSION,
    UvFailureKind.UNKNOWN_PACKAGE,
    UvFailureKind.WRONG_TARGET,
    UvFailureKind.CONFLICT,
)
NO_RANGES = "the index does not support range requests"
# Name of the stored metadata that the index serves separately from the wheel (PEP 658).
INDEX_METADATA = "index-metadata/METADATA"
MAX_METADATA_BYTES = 1 << 20
RELEASE_LAYOUT = 3
COMMIT_LAYOUT = 4
# A commit has no built metadata, so its requirements are stored in a file of their own.
REQUIREMENTS, TREE_REQUIREMENTS = "requirements.txt", "tree-requirements.txt"
LockEntry = Mapping[str, Any]
EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class ReleaseFiles:
    """The URLs of the files of one release. hashes: URL -> SHA-256, if the index provides it."""

    wheels: tuple[str, ...]
    sdist: str
    hashes: dict[str, str]


class TooLargeError(InfrastructureError):
    """The index does not support range requests, and the files of this release are too large to download."""


def fetch_sources(package: str, version: str, *, cache: Path, command: RunCommand) -> Path:
    """A zip of the release's sources as they would be installed, from the cache or from the index.

    ReleaseNotFoundError if no index has the release, InputError for a damaged or malicious archive,
    InfrastructureError if the index is not reachable, TooLargeError for a large file without range support.
    """
    require_release_name(package, version)

    def fetch(folder: Path) -> Path:
        settings = index_environment(os.environ)
        published = _locate(package, version, settings, folder, command)
        target = folder / "ready" / f"{package}-{version}.zip"
        target.parent.mkdir()
        _fetch(published, target, settings)
        return target

    return cached_fetch(cache / "sources" / f"text-{RELEASE_LAYOUT}-{package.lower()}-{version}", fetch)


def newest_version(requirement: str, *, cache: Path, command: RunCommand) -> str:
    """The newest final release for `requirement` (`name>=1,<2`); same errors as `fetch_sources`."""
    folder = cache / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".asking-") as temporary:
        settings = index_environment(os.environ)
        entry = _locked_entry(
            requirement, settings, Path(temporary), command, ("--prerelease", "if-necessary")
        )
    return str(entry["version"])


def release_requirements(sources: Path) -> tuple[str, ...]:
    """The requirements in the metadata of a release; none for a commit."""
    text = _member_text(sources, ".dist-info/METADATA")
    lines = email.message_from_string(text).get_all("Requires-Dist", [])
    return tuple(line for line in lines if _is_requirement(line))


def tree_requirements(sources: Path) -> tuple[str, ...]:
    """The requirements in a commit's requirements file; none for a release."""
    text = _member_text(sources, TREE_REQUIREMENTS)
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line and _is_requirement(line))


def _member_text(sources: Path, ending: str) -> str:
    """The text of the first member whose name has this ending; "" if there is none."""
    try:
        with zipfile.ZipFile(sources) as archive:
            names = [name for name in archive.namelist() if name.endswith(ending)]
            return archive.read(names[0]).decode("utf-8", "replace") if names else ""
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise InputError("these sources cannot be read", where=Location(sources), why=str(error)) from error


def exact_version(requirement: Requirement) -> str:
    """The version that a requirement pins with `==`, or ""."""
    pins = (item.version for item in requirement.specifier if item.operator == "==")
    return next((version for version in pins if "*" not in version), "")


def _is_requirement(line: str) -> bool:
    try:
        Requirement(line)
    except InvalidRequirement:
        return False
    return True


def commit_sources(commit: str, *, cache: Path, mirrors: Path | None) -> Path | None:
    """The sources of a commit, from a clone or bare mirror below `mirrors`; None if none has it."""
    repository = find_mirror(mirrors, commit) if mirrors else None
    if repository is None:
        return None
    tree = repository.tree(commit)

    def fetch(folder: Path) -> Path:
        target = folder / "ready" / "sources.zip"
        target.parent.mkdir()
        members = ((path, tree.read(path)) for path in sorted(tree.paths()) if _is_source(path))
        requirements = [tree.read(REQUIREMENTS)] if tree.mode(REQUIREMENTS) else []
        _write(target, chain(members, ((TREE_REQUIREMENTS, text) for text in requirements)))
        return target

    return cached_fetch(cache / "sources" / f"text-{COMMIT_LAYOUT}-{tree.commit}", fetch)


@dataclass(frozen=True, kw_only=True)
class SourceFetcher:
    """Fetches the sources of releases from the index and of commits from mirrors, with a cache."""

    cache: Path
    command: RunCommand
    mirrors: Path | None

    def fetch(self, package: str, version: str, commit: str = "") -> Path | None:
        """The sources of a release or commit, None if they are not available."""
        if commit:
            return commit_sources(commit, cache=self.cache, mirrors=self.mirrors)
        try:
            return fetch_sources(package, version, cache=self.cache, command=self.command)
        except (ReleaseNotFoundError, TooLargeError):
            return None


def _locate(
    package: str, version: str, settings: IndexSettings, work: Path, command: RunCommand
) -> ReleaseFiles:
    """The files of the release, as uv finds them on the index."""
    entry = _locked_entry(f"{package}=={version}", settings, work, command, ("--prerelease", "allow"))
    wheels = [_file(wheel, work) for wheel in entry.get("wheels", [])]
    sdist = _file(entry["sdist"], work) if "sdist" in entry else ("", "")
    return ReleaseFiles(
        wheels=tuple(sorted((url for url, _ in wheels), key=_preference)),
        sdist=sdist[0],
        hashes={url: digest for url, digest in (*wheels, sdist) if digest},
    )


def _locked_entry(
    requirement: str, settings: IndexSettings, work: Path, command: RunCommand, options: tuple[str, str]
) -> LockEntry:
    """The lock entry of the release that uv selects for a requirement, with the URLs of its files."""
    (work / "requirements.in").write_text(f"{requirement}\n", encoding="utf-8")
    (work / "uv.toml").write_text(settings.uv_file(), encoding="utf-8")
    argv = [
        *(uv_binary(), "pip", "compile", "requirements.in", "--output-file", "pylock.toml"),
        *("--format", "pylock.toml", "--no-deps", "--universal", "--python-version", "3.11"),
        *("--no-header", "--quiet", "--color", "never", *options, *settings.uv_arguments()),
    ]
    done = command(argv, env=settings.uv_environment(), cwd=work, timeout=LOCATE_TIMEOUT_S)
    if done.returncode != 0:
        raise _failure(requirement, redact_text(done.tail), timed_out=done.timed_out)
    entry: LockEntry = tomllib.loads((work / "pylock.toml").read_text(encoding="utf-8"))["packages"][0]
    return entry


def _failure(requirement: str, tail: str, *, timed_out: bool) -> HarnessError:
    problem = fetch_failure(tail)
    if problem:
        return problem.error()
    if not timed_out and parse_uv_failure(tail).kind in ABSENT:
        return ReleaseNotFoundError(
            f"the package index has no {requirement.replace('==', ' ')}",
            why=tail.strip().splitlines()[-1] if tail.strip() else "",
            fix="choose a published version",
        )
    return machine_failure(tail) or InfrastructureError(
        f"the package index could not be searched for {requirement}",
        why="it timed out" if timed_out else tail.strip()[-500:],
        fix="check the network and pip's index settings (`pip config list`), then run again",
    )


def _file(entry: LockEntry, work: Path) -> tuple[str, str]:
    url = entry.get("url") or (work / entry["path"]).resolve().as_uri()
    return str(url), str(entry.get("hashes", {}).get("sha256", ""))


def _preference(url: str) -> tuple[int, str]:
    """Sort key: pure Python wheels first, then Linux wheels, then by name."""
    name = url.rpartition("/")[2]
    return (0 if "-none-any" in name else 1 if "linux" in name else 2), name


def _fetch(published: ReleaseFiles, target: Path, settings: IndexSettings) -> None:
    """Fetch the needed members of a wheel by range, otherwise the sdist, otherwise the whole wheel."""
    wheel = published.wheels[0] if published.wheels else ""
    fetches: list[Callable[[], None]] = [partial(_store_by_range, wheel, settings, target)] if wheel else []
    for url, limit in ((published.sdist, MAX_SDIST_BYTES), (wheel, MAX_WHEEL_BYTES)):
        if url:
            sha256 = published.hashes.get(url, "")
            fetches.append(partial(_store_download, url, limit, sha256, settings, target))
    failures = []
    for fetch in fetches:
        failure = _try_fetch(fetch)
        if not failure:
            return
        failures.append(failure)
    is_too_large = (
        NO_RANGES in failures and len(failures) > 1 and all(TOO_LARGE in one for one in failures[1:])
    )
    raise (TooLargeError if is_too_large else InfrastructureError)(
        f"the sources of {target.stem} could not be fetched",
        why="; ".join(dict.fromkeys(failures)),
        fix="check the network and pip's index settings (`pip config list`), then run again",
    )


def _try_fetch(fetch: Callable[[], None]) -> str:
    """Call `fetch`; returns why it failed, or ""."""
    try:
        fetch()
    except NoRangesError:
        return NO_RANGES
    except OSError as error:
        return redact_text(str(error)) or type(error).__name__
    return ""


def _store_by_range(url: str, settings: IndexSettings, target: Path) -> None:
    with open_remote(url, settings) as stream:
        _store_wheel(stream, url, target, _index_metadata(url, settings))


def _store_download(url: str, limit: int, sha256: str, settings: IndexSettings, target: Path) -> None:
    _store_archive(url, download(url, settings, limit), sha256, target)


def _index_metadata(url: str, settings: IndexSettings) -> bytes:
    """The wheel's metadata from the index; empty if the index has none."""
    try:
        return download(f"{url.partition('#')[0]}.metadata", settings, MAX_METADATA_BYTES)
    except OSError:
        return b""


def _store_wheel(stream: IO[bytes], url: str, target: Path, metadata: bytes = b"") -> None:
    where = Location(redact_url(url).rpartition("/")[2])
    try:
        with open_zip(stream, Path(where.file)) as wheel:
            members = _source_members(wheel, where)
            if not members:
                raise InputError("this wheel has no Python sources", where=where)
            prefetch = getattr(stream, "prefetch", None)
            if prefetch:
                # A local header is its fixed 30 bytes, the name, and an extra field that may differ from the
                # directory's.
                prefetch(
                    (m.header_offset, m.header_offset + 30 + len(m.orig_filename) * 4 + 512 + m.compress_size)
                    for m in members
                )
            compiled = [
                name for name in wheel.namelist() if COMPILED.fullmatch(name) and not path_problem(name)
            ]
            _write(
                target,
                chain(
                    ((installed_path(m.filename), wheel.read(m)) for m in members),
                    ((installed_path(name), b"") for name in compiled),
                    [(INDEX_METADATA, metadata)] if metadata else [],
                ),
            )
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise InputError("this wheel cannot be read", where=where, why=str(error)) from error


def _source_members(wheel: zipfile.ZipFile, where: Location) -> list[zipfile.ZipInfo]:
    infos = wheel.infolist()
    if len(infos) > MAX_MEMBERS:
        raise InputError("this wheel is not used: it has too many files", where=where)
    members = []
    for info in infos:
        if (
            info.is_dir()
            or not _is_source(installed_path(info.filename))
            or info.file_size > MAX_MEMBER_BYTES
        ):
            continue
        problem = path_problem(info.filename)
        if problem:
            raise InputError(f"this wheel is not used: {info.filename!r} has {problem}", where=where)
        members.append(info)
    if sum(info.file_size for info in members) > MAX_TOTAL_BYTES:
        raise InputError("this wheel is not used: its sources are larger than any known", where=where)
    return members


def _is_source(name: str) -> bool:
    return SOURCE_FILES.fullmatch(name) is not None and EXCLUDED_FILES.fullmatch(name) is None


def _store_archive(url: str, data: bytes, sha256: str, target: Path) -> None:
    name = redact_url(url).rpartition("/")[2]
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise InputError(
            "this file is not the one that the index lists", where=Location(name), why="its SHA-256 differs"
        )
    if name.endswith(".whl"):
        _store_wheel(io.BytesIO(data), url, target)
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        file = Path(folder) / Path(name).name
        file.write_bytes(data)
        tree = open_archive(file)
        paths = sorted(tree.paths())
        # A source layout installs what is below `src`.
        top = (
            "src/" if any(path.startswith("src/") and path.endswith("/__init__.py") for path in paths) else ""
        )
        sources = [
            (path, path.removeprefix(top))
            for path in paths
            if path.startswith(top) and _is_source(path.removeprefix(top))
        ]
        _write(
            target,
            (
                (name, tree.read(path))
                for path, name in sources
                if tree.members[path].size <= MAX_MEMBER_BYTES
            ),
        )


def _write(target: Path, members: Iterable[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name, date_time=EPOCH), data, zipfile.ZIP_DEFLATED)
