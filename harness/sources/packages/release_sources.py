"""The Python sources and schemas of a release or commit as a small zip archive, without compiled files.

Of a large remote wheel only these members are fetched, with range requests: a few MB of 400 MB.
"""

from __future__ import annotations

import email
import errno
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from packaging.requirements import InvalidRequirement, Requirement

from harness.errors import InputError, Location
from harness.sources.damaged_archive import UNREADABLE
from harness.sources.packages.archive import installed_path, open_archive, open_zip
from harness.sources.packages.archive_cache import new_file
from harness.sources.packages.remote_file import RemoteFile
from harness.sources.packages.wheel_record import WheelRecord, digest_of, has_digest, read_record
from harness.sources.tree import Tree, path_problem

# Only the names of compiled modules are kept: they show that a module exists, not what it defines.
COMPILED = re.compile(r".*\.(?:so|pyd)")
SOURCE_FILES = re.compile(
    r".*\.py|torch_npu/csrc/aten/.*\.yaml|\w+/(?:\w+/)*config/(?:\w+/)*\w+\.yaml"
    r"|[^/]+\.dist-info/(?:METADATA|RECORD|entry_points\.txt)|PKG-INFO"
)
# Tests and examples are not part of the API.
EXCLUDED_FILES = re.compile(
    r"(?:tests?|examples?|docs?|benchmarks?)/.*|.*/(?:tests|testing|_vendor|thirdparty_files)/.*"
)
MAX_MEMBER_BYTES = 8 << 20
MAX_TOTAL_BYTES = 512 << 20
MAX_MEMBERS = 200_000
SDIST_METADATA = "PKG-INFO"
# A commit has no built metadata, so its requirements are stored in a file of their own.
REQUIREMENTS, TREE_REQUIREMENTS = "requirements.txt", "tree-requirements.txt"
EPOCH = (1980, 1, 1, 0, 0, 0)


def release_requirements(sources: Path) -> tuple[str, ...]:
    """The requirements in the metadata of a release, of its wheel or sdist; none for a commit."""
    text = _member_text(sources, ".dist-info/METADATA") or _member_text(sources, SDIST_METADATA)
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
    except UNREADABLE as error:
        raise InputError("these sources cannot be read", where=Location(sources), why=str(error)) from error


def release_entry_points(sources: Path) -> str:
    """The text of `entry_points.txt` of a release, "" if it has none."""
    return _member_text(sources, ".dist-info/entry_points.txt")


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


def archive_sources(archive: Path) -> Iterator[tuple[str, bytes]]:
    """The paths and contents of the sources in a wheel or an sdist.

    InputError if it is damaged or malicious, or a wheel contradicts its RECORD.
    """
    if archive.suffix == ".whl":
        where = Location(archive.name)
        with archive.open("rb") as stream, _opened_wheel(stream, where) as wheel:
            members = _source_members(wheel, where)
            yield from _wheel_contents(wheel, members, read_record(wheel, where))
        return
    tree = open_archive(archive)
    paths = sorted(tree.paths())
    # A source layout installs what is below `src`.
    top = "src/" if any(path.startswith("src/") and path.endswith("/__init__.py") for path in paths) else ""
    for path in paths:
        name = path.removeprefix(top)
        # The metadata is beside `src`, not below it.
        included = _is_source(name) if path.startswith(top) else path == SDIST_METADATA
        if included and tree.members[path].size <= MAX_MEMBER_BYTES:
            yield name, tree.read(path)


def commit_sources(tree: Tree) -> Iterator[tuple[str, bytes]]:
    """The paths and contents of the sources of a commit, and its requirements file."""
    yield from ((path, tree.read(path)) for path in sorted(tree.paths()) if _is_source(path))
    if tree.mode(REQUIREMENTS):
        yield TREE_REQUIREMENTS, tree.read(REQUIREMENTS)


def update_sources(target: Path, contents: Callable[[], Iterator[tuple[str, bytes]]]) -> None:
    """Write a zip with these contents, unless `target` has exactly these: comparing is faster."""
    if not _has_contents(target, contents()):
        with new_file(target) as file:
            _write(file, contents())


def _has_contents(sources: Path, contents: Iterable[tuple[str, bytes]]) -> bool:
    try:
        with zipfile.ZipFile(sources) as archive:
            names = archive.namelist()
            remaining = set(names)
            if len(remaining) != len(names):
                return False
            for name, data in contents:
                if name not in remaining or archive.read(name) != data:
                    return False
                remaining.discard(name)
            return not remaining
    except UNREADABLE:
        return False


def write_wheel_part(stream: RemoteFile, name: str, target: Path) -> None:
    """Write the sources of a remote wheel, of which only these members are fetched.

    Every member is verified against the wheel's RECORD. If `target` has exactly these members, it is kept.
    InputError for a damaged or malicious wheel, and if a member is not the one in RECORD.
    """
    where = Location(name)
    with _opened_wheel(cast("IO[bytes]", stream), where) as wheel:
        members = _source_members(wheel, where)
        record = read_record(wheel, where)
        expected = {installed_path(m.filename): record.digests[m.filename] for m in members}
        if _has_members(target, expected | dict.fromkeys(_compiled(wheel), digest_of(b""))):
            return
        # A local header is its fixed 30 bytes, the name, and an extra field that may differ from the
        # directory's.
        stream.prefetch(
            (m.header_offset, m.header_offset + 30 + len(m.orig_filename) * 4 + 512 + m.compress_size)
            for m in members
        )
        with new_file(target) as file:
            _write(file, _wheel_contents(wheel, members, record))


def _wheel_contents(
    wheel: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo], record: WheelRecord
) -> Iterator[tuple[str, bytes]]:
    """The verified contents of these members by their installed paths, and empty compiled modules."""
    for member in members:
        yield installed_path(member.filename), record.verified(member.filename, wheel.read(member))
    yield from ((name, b"") for name in _compiled(wheel))


@contextmanager
def _opened_wheel(stream: IO[bytes], where: Location) -> Iterator[zipfile.ZipFile]:
    try:
        with open_zip(stream, Path(where.file)) as wheel:
            yield wheel
    except UNREADABLE as error:
        # Other errors of the system come from the disk or the network; EINVAL is a seek to before the start.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise InputError("this wheel cannot be read", where=where, why=str(error)) from error


def _compiled(wheel: zipfile.ZipFile) -> list[str]:
    names = (name for name in wheel.namelist() if COMPILED.fullmatch(name) and not path_problem(name))
    return list(dict.fromkeys(map(installed_path, names)))


def _has_members(sources: Path, expected: Mapping[str, str]) -> bool:
    """Whether a zip has exactly these members (path -> digest)."""
    try:
        with zipfile.ZipFile(sources) as archive:
            names = archive.namelist()
            return (
                len(names) == len(expected)
                and set(names) == set(expected)
                and all(has_digest(archive.read(name), expected[name]) for name in names)
            )
    except UNREADABLE:
        return False


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


def _write(target: Path, members: Iterable[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive:
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name, date_time=EPOCH), data, zipfile.ZIP_DEFLATED)
