"""The file format of surface packs: SQLite, with the files of many releases of each package.

Contents that several releases share are stored once. All contents of one path are adjacent, and compressed
together with those of its neighbours in chunks, so that similar contents cost little and a query decompresses
little. The digest of a pack is that of what it says, not of the bytes of the file: it depends neither on
SQLite nor on the compressor.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import sqlite3
import urllib.parse
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from harness.compat.knowledge.raised_messages import RAISED
from harness.digest import digest_json
from harness.errors import InputError, Location
from harness.sources.packages.archive_cache import new_file

FORMAT, FORMAT_VERSION = "npu-matrix.surface-pack", 2
APPLICATION_ID = 0x4E504D31
CHUNK_BYTES = 256 << 10
#: No chunk of a pack unpacks to more: a larger one is forged.
MAX_CHUNK_BYTES = 64 << 20
#: Of the chunks of one package, unpacked ones are kept up to this size. To unpack 160 MB takes a second.
MAX_KEPT_BYTES = 24 << 20
MAX_DIRECTORY_BYTES = 64 << 20
ABSENT = -1
#: Who looks a name up searches for these too: modules with one of them may have more names than they state.
SEARCHED_NEXT = (b"import *", b"__getattr__")
#: A class of an outline, or a function of its top level.
_DEFINED = re.compile(rb"^(?: *class|def|async def) (\w+)", re.MULTILINE)
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 4 << 20}]
#: A decompressor: it gets the packed bytes and how many it may return.
Unpack = Callable[[bytes, int], bytes]
_REMEDY = "fetch the pack again: npu-matrix knowledge update"


class PackedRelease(BaseModel):
    """A release that a package index lists.

    uploaded: YYYY-MM-DD, or "". archive: the file that was read, with its SHA-256; "" if none was.
    unread: why the release was not read, "" if it was.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    uploaded: str = ""
    archive: str = ""
    sha256: str = ""
    unread: str = ""


@dataclass(frozen=True, kw_only=True)
class PackagedFiles:
    """The releases of a package, oldest first, and for each release that was read path -> content."""

    releases: tuple[PackedRelease, ...]
    contents: Mapping[str, Mapping[str, bytes]]


class _Member(BaseModel):
    """A path: its chunk, the position of its first content there, the sizes of its contents in bytes, and
    [release, content, release, content, ...]: from which release on it has which content, or `ABSENT`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    p: str
    c: int
    o: int
    s: list[int]
    r: list[int]


class _Directory(BaseModel):
    """The releases and members of a package, and the digests of its chunks and of its definitions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    releases: list[PackedRelease]
    members: list[_Member]
    chunks: list[str]
    definitions: str


#: Name of a class or function -> the numbers of the members that define it in any release.
_Definitions = dict[str, list[int]]
_DIRECTORY = TypeAdapter(_Directory)
_DEFINITIONS = TypeAdapter(_Definitions)


@dataclass(frozen=True, kw_only=True)
class _Arranged:
    directory: _Directory
    definitions: bytes
    chunks: list[bytes]


def write_pack(
    target: Path, packages: Mapping[str, PackagedFiles], kept: PackFile | None = None, began_with: str = ""
) -> str:
    """Write a pack and return its digest. Equal packages give equal digests.

    kept: an open pack, whose other packages are copied. began_with: see `PackFile.began_with`.
    """
    digests = {}
    with new_file(target) as file:
        database = sqlite3.connect(file, isolation_level=None)
        try:
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute("CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID")
            database.execute(
                "CREATE TABLE package(name TEXT PRIMARY KEY, directory BLOB, definitions BLOB) WITHOUT ROWID"
            )
            database.execute(
                "CREATE TABLE chunk(package TEXT, number INTEGER, data BLOB, PRIMARY KEY(package, number))"
            )
            database.execute("BEGIN")
            for name in (one for one in (kept.packages if kept else ()) if one not in packages):
                digests[name] = kept.copy_package(name, database) if kept else ""
            for name, files in sorted(packages.items()):
                arranged = _arranged(files)
                text = arranged.directory.model_dump_json().encode()
                digests[name] = hashlib.sha256(text).hexdigest()
                database.execute(
                    "INSERT INTO package VALUES (?, ?, ?)",
                    (name, zlib.compress(text, 9), zlib.compress(arranged.definitions, 9)),
                )
                database.executemany(
                    "INSERT INTO chunk VALUES (?, ?, ?)",
                    ((name, number, _packed(data)) for number, data in enumerate(arranged.chunks)),
                )
            digest = digest_json([FORMAT, FORMAT_VERSION, digests])
            rows = {"format": FORMAT, "version": str(FORMAT_VERSION), "digest": digest}
            rows["began_with"] = began_with
            rows["packages"] = json.dumps(digests, sort_keys=True)
            rows["newest"] = max([kept.newest if kept else "", *map(_newest, packages.values())])
            database.executemany("INSERT INTO meta VALUES (?, ?)", sorted(rows.items()))
            database.execute("COMMIT")
            database.execute("VACUUM")
        finally:
            database.close()
    return digest


def _newest(files: PackagedFiles) -> str:
    return max((release.uploaded for release in files.releases), default="")


def _packed(data: bytes) -> bytes:
    return lzma.compress(data, format=lzma.FORMAT_RAW, filters=_FILTERS)


def _arranged(files: PackagedFiles) -> _Arranged:
    """The members of a package in chunks. The order depends on paths and releases only."""
    read = [number for number, release in enumerate(files.releases) if not release.unread]
    held = [files.contents.get(release.version, {}) for release in files.releases]
    paths = sorted({path for number in read for path in held[number]}, key=_neighbourhood)
    chunks: list[bytearray] = []
    members: list[_Member] = []
    definitions: _Definitions = {}
    for path in paths:
        contents: dict[bytes, int] = {}
        numbers = [
            contents.setdefault(held[n][path], len(contents)) if path in held[n] else ABSENT for n in read
        ]
        runs: list[int] = []
        for number, content in zip(read, numbers, strict=True):
            if content != (runs[-1] if runs else ABSENT):
                runs += [number, content]
        if not chunks or len(chunks[-1]) >= CHUNK_BYTES:
            chunks.append(bytearray())
        start = len(chunks[-1])
        chunks[-1] += b"".join(contents)
        if path.endswith(".py"):
            for name in sorted({name for text in contents for name in _DEFINED.findall(text)}):
                definitions.setdefault(name.decode(), []).append(len(members))
        members.append(_Member(p=path, c=len(chunks) - 1, o=start, s=list(map(len, contents)), r=runs))
    data = [bytes(chunk) for chunk in chunks]
    named = json.dumps(definitions, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    directory = _Directory(
        releases=list(files.releases),
        members=members,
        chunks=[hashlib.sha256(chunk).hexdigest() for chunk in data],
        definitions=hashlib.sha256(named).hexdigest(),
    )
    return _Arranged(directory=directory, definitions=named, chunks=data)


def _neighbourhood(path: str) -> tuple[bool, str, str]:
    # Few questions are about messages, so their chunks come last.
    folder, _, name = path.rpartition("/")
    return path.endswith(RAISED), folder, name


class PackFile:
    """A pack that is open for reading. Chunks are verified when they are read."""

    def __init__(self, file: Path) -> None:
        """InputError if the file is no pack, is damaged, or is one of another format version."""
        self._file = file
        if not file.is_file():
            raise InputError("there is no surface pack", where=Location(file), fix=_REMEDY)
        address = f"file:{urllib.parse.quote(str(file.absolute()))}?mode=ro&immutable=1"
        try:
            self._database = sqlite3.connect(address, uri=True, check_same_thread=False)
            # Python 3.13 and later warn about connections that nobody closed.
            weakref.finalize(self, self._database.close)
            meta = dict(self._database.execute("SELECT key, value FROM meta"))
        except sqlite3.Error as error:
            raise self._damaged(f"it is not a surface pack: {error}") from error
        if meta.get("format") != FORMAT:
            raise self._damaged("it is not a surface pack")
        if meta.get("version") != str(FORMAT_VERSION):
            raise InputError(
                f"this surface pack has the format version {meta.get('version')}",
                where=Location(file),
                why=f"this npu-matrix reads version {FORMAT_VERSION}",
                fix=_REMEDY,
            )
        try:
            self._digests = TypeAdapter(dict[str, str]).validate_json(meta.get("packages", ""))
        except ValidationError as error:
            raise self._damaged("its list of packages cannot be read") from error
        if digest_json([FORMAT, FORMAT_VERSION, self._digests]) != meta.get("digest"):
            raise self._damaged("its digest is not that of its packages")
        self.digest: str = meta["digest"]
        # When its newest release was uploaded, YYYY-MM-DD, or "".
        self.newest: str = meta.get("newest", "")
        # The digest of the shipped pack to which updates added releases, or "".
        self.began_with: str = meta.get("began_with", "")

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages, sorted by name."""
        return tuple(sorted(self._digests))

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def copy_package(self, name: str, target: sqlite3.Connection) -> str:
        """Copy the rows of a package into another pack; returns the digest of its directory."""
        for table in ("package", "chunk"):
            column = "name" if table == "package" else "package"
            # The names are those above.
            rows = self._database.execute(f"SELECT * FROM {table} WHERE {column} = ?", (name,))  # noqa: S608
            for row in rows:
                target.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)  # noqa: S608
        return self._digests[name]

    def package(self, name: str) -> PackagePart:
        """The part of one package, which must be in `packages`."""
        packed = self._row("SELECT directory FROM package WHERE name = ?", (name,))
        text = self._unpacked(zlib.decompressobj().decompress, packed, MAX_DIRECTORY_BYTES)
        if hashlib.sha256(text).hexdigest() != self._digests[name]:
            raise self._damaged(f"the directory of {name} is not the one that its digest states")
        try:
            directory = _DIRECTORY.validate_json(text)
        except ValidationError as error:
            raise self._damaged(f"the directory of {name} cannot be read") from error
        return PackagePart(name, directory, self)

    def definitions(self, package: str, digest: str) -> Mapping[str, Sequence[int]]:
        """Name of a class or function -> the positions of the members that define it, verified."""
        packed = self._row("SELECT definitions FROM package WHERE name = ?", (package,))
        text = self._unpacked(zlib.decompressobj().decompress, packed, MAX_DIRECTORY_BYTES)
        if hashlib.sha256(text).hexdigest() != digest:
            raise self._damaged(f"the definitions of {package} are not those that their digest states")
        try:
            return _DEFINITIONS.validate_json(text)
        except ValidationError as error:
            raise self._damaged(f"the definitions of {package} cannot be read") from error

    def chunk(self, package: str, number: int, digest: str) -> bytes:
        """One chunk of a package, verified."""
        packed = self._row("SELECT data FROM chunk WHERE package = ? AND number = ?", (package, number))
        unpack = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=_FILTERS).decompress
        data = self._unpacked(unpack, packed, MAX_CHUNK_BYTES)
        if hashlib.sha256(data).hexdigest() != digest:
            raise self._damaged(f"part {number} of {package} is not the one that its digest states")
        return data

    def _row(self, query: str, values: Sequence[str | int]) -> bytes:
        try:
            row = self._database.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise self._damaged(str(error)) from error
        if row is None or not isinstance(row[0], bytes):
            raise self._damaged("a part is missing")
        return row[0]

    def _unpacked(self, unpack: Unpack, packed: bytes, limit: int) -> bytes:
        try:
            data = unpack(packed, limit + 1)
        except (zlib.error, lzma.LZMAError, EOFError, ValueError) as error:
            raise self._damaged(str(error)) from error
        if len(data) > limit:
            raise self._damaged("a part is larger than any that npu-matrix writes")
        return data

    def _damaged(self, why: str) -> InputError:
        return InputError("this surface pack is not used", where=Location(self._file), why=why, fix=_REMEDY)


class PackagePart:
    """The releases of one package in a pack."""

    def __init__(self, name: str, directory: _Directory, file: PackFile) -> None:
        self.name = name
        self.releases = tuple(directory.releases)
        self._members = {member.p: member for member in directory.members}
        self._chunk_digests = directory.chunks
        self._definitions_digest = directory.definitions
        self._file = file
        self._chunks: dict[int, bytes] = {}
        self._chunk_bytes = 0
        self._contents: dict[tuple[str, int], bytes] = {}
        self._containing: dict[bytes, Mapping[str, frozenset[int]]] = {}

    def paths(self) -> Iterable[str]:
        """Every path that any release has."""
        return self._members

    @property
    def unpacked(self) -> int:
        """How many bytes were unpacked and are kept."""
        return self._chunk_bytes + sum(map(len, self._contents.values()))

    def depth_of(self, parts: Sequence[str]) -> int:
        """How many of the first parts of a dotted name are a folder or module of any release."""
        depth = 0
        while depth < len(parts) and "/".join(parts[: depth + 1]) in self._modules:
            depth += 1
        return depth

    @cached_property
    def _modules(self) -> frozenset[str]:
        """Every module and every folder with modules, without its ending."""
        modules = [path.removesuffix(".py") for path in self._members if path.endswith(".py")]
        ends = ((path, (at for at, sign in enumerate(path) if sign == "/")) for path in modules)
        return frozenset(modules) | {path[:at] for path, positions in ends for at in positions}

    def defining(self, name: str) -> tuple[str, ...]:
        """The paths of the modules that define a class or function of this name in any release."""
        paths = list(self._members)
        return tuple(paths[number] for number in self._definitions.get(name, ()) if number < len(paths))

    @cached_property
    def _definitions(self) -> Mapping[str, Sequence[int]]:
        return self._file.definitions(self.name, self._definitions_digest)

    def content_numbers(self, release: int) -> Mapping[str, int]:
        """Path -> the number of its content in a release (position in `releases`)."""
        return self._by_release[release]

    @cached_property
    def _by_release(self) -> list[dict[str, int]]:
        found: list[dict[str, int]] = [{} for _ in self.releases]
        for path, member in self._members.items():
            starts, contents = member.r[::2], member.r[1::2]
            for start, end, content in zip(starts, (*starts[1:], len(found)), contents, strict=True):
                if content != ABSENT:
                    for release in range(max(0, start), min(end, len(found))):
                        found[release][path] = content
        return found

    def containing(self, word: bytes) -> Mapping[str, frozenset[int]]:
        """Path -> the numbers of its contents that contain a text. Messages of exceptions are left out."""
        if word not in self._containing:
            # Each search unpacks every chunk, so what is mostly searched next is searched with it.
            wanted = {word, *SEARCHED_NEXT} - self._containing.keys()
            found: dict[bytes, dict[str, frozenset[int]]] = {one: {} for one in wanted}
            # A word is in few contents, so none is cut out of its chunk here.
            for number, members in self._by_chunk.items():
                chunk = self._chunk(number, is_scan=True)
                for one in wanted:
                    for path in members if one in chunk else ():
                        numbers = self._contents_with(path, chunk, one)
                        if numbers:
                            found[one][path] = numbers
            self._containing |= found
        return self._containing[word]

    def _contents_with(self, path: str, chunk: bytes, word: bytes) -> frozenset[int]:
        spans = pairwise(accumulate(self._members[path].s, initial=self._members[path].o))
        return frozenset(n for n, (start, end) in enumerate(spans) if chunk.find(word, start, end) >= 0)

    @cached_property
    def _by_chunk(self) -> dict[int, list[str]]:
        """Number of a chunk -> the paths whose contents it has, without messages of exceptions."""
        found: dict[int, list[str]] = {}
        for path, member in self._members.items():
            if not path.endswith(RAISED):
                found.setdefault(member.c, []).append(path)
        return found

    @cached_property
    def raised(self) -> Mapping[bytes, tuple[int, ...]]:
        """Line of a file with messages of exceptions -> the releases that have it."""
        found: dict[bytes, list[int]] = {}
        for release, numbers in enumerate(self._by_release):
            for path, number in numbers.items():
                if path.endswith(RAISED):
                    for line in self.content(path, number).splitlines():
                        found.setdefault(line, []).append(release)
        return {line: tuple(releases) for line, releases in found.items()}

    def content(self, path: str, number: int) -> bytes:
        """One content of a path. The same object is returned each time.

        All contents of a path are in one chunk, and who reads one release reads the others next.
        """
        if (path, number) not in self._contents:
            member = self._members[path]
            chunk = self._chunk(member.c)
            for one, (start, end) in enumerate(pairwise(accumulate(member.s, initial=member.o))):
                self._contents[path, one] = chunk[start:end]
        return self._contents[path, number]

    def _chunk(self, number: int, *, is_scan: bool = False) -> bytes:
        """An unpacked chunk. Those used last are kept; a scan, which reads all in order, displaces none."""
        chunk = self._chunks.pop(number, b"")
        if chunk:
            self._chunk_bytes -= len(chunk)
        else:
            chunk = self._file.chunk(self.name, number, self._chunk_digests[number])
        while not is_scan and self._chunks and self._chunk_bytes + len(chunk) > MAX_KEPT_BYTES:
            self._chunk_bytes -= len(self._chunks.pop(next(iter(self._chunks))))
        if self._chunk_bytes + len(chunk) <= MAX_KEPT_BYTES:
            self._chunks[number] = chunk
            self._chunk_bytes += len(chunk)
        return chunk

    def files(self) -> PackagedFiles:
        """Everything, as it was written."""
        return PackagedFiles(
            releases=self.releases,
            contents={
                release.version: {
                    path: self.content(path, content)
                    for path, content in self.content_numbers(number).items()
                }
                for number, release in enumerate(self.releases)
                if not release.unread
            },
        )
