"""The trees inside wheels and sdists, read member by member without unpacking to disk."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from harness.digest import CHUNK_BYTES
from harness.errors import InputError, Location
from harness.sources.damaged_archive import UNREADABLE
from harness.sources.tree import EXECUTABLE, MAX_FILE_BYTES, REGULAR, SYMLINK, path_problem

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_MEMBERS = 200_000
MAX_TOTAL_BYTES = 4 << 30
#: Deflate reaches at most 1032:1; source files stay far below that.
MAX_RATIO = 500
SMALL_BYTES = 16 << 20
MAX_TAR_BYTES = 512 << 20
#: A zip's directory is read as a whole: 46 bytes and a name per member, and ten times that in memory.
MAX_DIRECTORY_BYTES = 24 << 20
_END, _END_64 = b"PK\x05\x06", b"PK\x06\x06"
_LONGEST_END = 22 + 0xFFFF + 76


@dataclass(frozen=True, kw_only=True)
class ArchiveMember:
    """A file of an archive: its name inside, its mode and its unpacked size in bytes."""

    name: str
    mode: str
    size: int


@dataclass(frozen=True, kw_only=True)
class ArchiveTree:
    """The files of a wheel (as they would be installed) or of an sdist (below its top folder).

    reader: a function that returns the bytes of a member.
    """

    file: Path
    members: Mapping[str, ArchiveMember]
    reader: Callable[[ArchiveMember], bytes]

    @property
    def label(self) -> str:
        """The archive's file name."""
        return self.file.name

    def paths(self) -> Iterator[str]:
        """Every file's path."""
        return iter(self.members)

    def mode(self, path: str) -> str | None:
        """The file's mode, or None."""
        member = self.members.get(path)
        return member.mode if member else None

    def is_folder(self, path: str) -> bool:
        """Whether there are files below `path`."""
        return any(other.startswith(f"{path}/") for other in self.members)

    def read(self, path: str) -> bytes:
        """The file's bytes; KeyError if there is no such file, InputError if its size is wrong."""
        member = self.members[path]
        if member.size > MAX_FILE_BYTES:
            raise _hostile(self.file, f"member {member.name!r} is {member.size} bytes", "over 256 MiB")
        data = self.reader(member)
        if len(data) != member.size:
            raise _hostile(
                self.file, f"member {member.name!r} does not have its stated size", "a damaged archive"
            )
        return data


def open_archive(file: Path) -> ArchiveTree:
    """The tree inside a wheel, a zip or a tar archive; InputError if it is damaged or malicious."""
    try:
        if zipfile.is_zipfile(file):
            return _open_zip(file)
        if tarfile.is_tarfile(file):
            return _open_tar(file)
    except UNREADABLE as error:
        raise InputError("this archive cannot be read", where=Location(file), why=str(error)) from error
    raise InputError(
        "this file is neither a wheel nor an sdist",
        where=Location(file),
        fix="give a .whl, .zip or .tar.gz file",
    )


def open_zip(stream: IO[bytes] | Path, where: Path) -> zipfile.ZipFile:
    """Open a zip archive; InputError if its directory is larger than that of any real archive.

    zipfile.BadZipFile or a similar error if it is not a zip archive. `where` is used in messages.
    """
    if isinstance(stream, Path):
        with stream.open("rb") as opened:
            size = _directory_bytes(opened)
    else:
        size = _directory_bytes(stream)
    if size > MAX_DIRECTORY_BYTES:
        raise _hostile(where, f"its directory is {size >> 20} MiB", "no source archive has that many members")
    return zipfile.ZipFile(stream)


def _directory_bytes(stream: IO[bytes]) -> int:
    """The size of the directory, from the end record (APPNOTE 4.3.14, 4.3.16); 0 without an end record."""
    length = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, length - _LONGEST_END))
    tail = stream.read(_LONGEST_END)
    stream.seek(0)
    end = tail.rfind(_END)
    if end < 0 or len(tail) < end + 22:
        return 0
    size = int.from_bytes(tail[end + 12 : end + 16], "little")
    large = tail.rfind(_END_64, 0, end)
    if large >= 0 and len(tail) >= large + 48:
        size = max(size if size != 0xFFFFFFFF else 0, int.from_bytes(tail[large + 40 : large + 48], "little"))
    return size


class _OwnPosition(io.RawIOBase):
    """A file whose position is this process's own: that of a plain file is shared with forked processes."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file, self._position = file.open("rb"), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position}.get(whence)
        self._position = offset + (os.fstat(self._file.fileno()).st_size if start is None else start)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = os.preadv(self._file.fileno(), [buffer], self._position)
        self._position += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _open_zip(file: Path) -> ArchiveTree:
    archive = open_zip(io.BufferedReader(_OwnPosition(file)), file)
    infos = [info for info in archive.infolist() if not info.is_dir()]
    members = []
    for info in infos:
        if info.file_size > SMALL_BYTES and info.file_size > MAX_RATIO * max(1, info.compress_size):
            raise _hostile(file, f"member {info.filename!r} unpacks to {info.file_size} bytes", "a zip bomb")
        if info.flag_bits & 1:
            raise _hostile(file, f"member {info.filename!r} is encrypted", "its content cannot be read")
        members.append(ArchiveMember(name=info.filename, mode=_zip_mode(info), size=info.file_size))

    def read(member: ArchiveMember) -> bytes:
        try:
            with archive.open(member.name) as stream:
                return stream.read(member.size + 1)
        except UNREADABLE as error:
            raise InputError(
                f"member {member.name!r} is damaged", where=Location(file), why=str(error)
            ) from error

    wheel = file.suffix == ".whl"
    return ArchiveTree(file=file, members=_by_path(file, members, wheel=wheel), reader=read)


def _zip_mode(info: zipfile.ZipInfo) -> str:
    unix = info.external_attr >> 16
    if stat.S_ISLNK(unix):
        return SYMLINK
    return EXECUTABLE if unix & stat.S_IXUSR else REGULAR


def _open_tar(file: Path) -> ArchiveTree:
    archive = tarfile.open(fileobj=_decompressed(file))  # noqa: SIM115 - members are read later
    members, infos = [], {}
    for count, info in enumerate(archive):
        if count >= MAX_MEMBERS:
            raise _hostile(file, f"it has over {MAX_MEMBERS} members", "no source archive has that many")
        if info.isdir():
            continue
        if not (info.isreg() or info.issym()):
            raise _hostile(file, f"member {info.name!r} is not a plain file", "it is a link or a device")
        mode = SYMLINK if info.issym() else EXECUTABLE if info.mode & stat.S_IXUSR else REGULAR
        size = len(info.linkname.encode()) if info.issym() else info.size
        members.append(ArchiveMember(name=info.name, mode=mode, size=size))
        infos[info.name] = info

    def read(member: ArchiveMember) -> bytes:
        info: tarfile.TarInfo = infos[member.name]
        if info.issym():
            return info.linkname.encode()
        try:
            stream = archive.extractfile(info)
            data: bytes = stream.read(member.size + 1) if stream else b""
        except UNREADABLE as error:
            raise InputError(
                f"member {member.name!r} is damaged", where=Location(file), why=str(error)
            ) from error
        return data

    return ArchiveTree(file=file, members=_by_path(file, members, wheel=False), reader=read)


def _decompressed(file: Path) -> IO[bytes]:
    """The decompressed tar stream, in memory: seeking back in a compressed stream decompresses it again."""
    with file.open("rb") as stream:
        head = stream.read(6)
        stream.seek(0)
        packed = _unpacker(head, stream)
        plain = io.BytesIO()
        while chunk := packed.read(CHUNK_BYTES):
            plain.write(chunk)
            if plain.tell() > MAX_TAR_BYTES:
                raise _hostile(file, f"it unpacks to over {MAX_TAR_BYTES >> 20} MiB", "a decompression bomb")
    plain.seek(0)
    return plain


def _unpacker(head: bytes, stream: IO[bytes]) -> io.BufferedIOBase | IO[bytes]:
    # A Python can be built without these modules.
    import bz2
    import gzip
    import lzma

    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=stream)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(stream)
    return lzma.LZMAFile(stream) if head.startswith(b"\xfd7zXZ") else stream


def _by_path(file: Path, members: list[ArchiveMember], *, wheel: bool) -> dict[str, ArchiveMember]:
    if len(members) > MAX_MEMBERS:
        raise _hostile(file, f"it has {len(members)} members", "no source archive has that many")
    if sum(member.size for member in members) > MAX_TOTAL_BYTES:
        raise _hostile(file, "it unpacks to over 4 GiB", "a decompression bomb")
    for member in members:
        problem = path_problem(member.name.removeprefix("./"))
        if problem:
            raise _hostile(file, f"member {member.name!r} has {problem}", "it would be outside the tree")
    names = {
        member.name: installed_path(member.name) if wheel else member.name.removeprefix("./")
        for member in members
    }
    if not wheel:
        tops = {name.split("/")[0] for name in names.values()}
        if len(tops) == 1 and all("/" in name for name in names.values()):
            top = f"{tops.pop()}/"
            names = {member: name.removeprefix(top) for member, name in names.items()}
    by_path: dict[str, ArchiveMember] = {}
    for member in members:
        path = names[member.name]
        if path in by_path:
            raise _hostile(file, f"two members have the path {path!r}", "which one is installed is undefined")
        by_path[path] = member
    return by_path


def installed_path(name: str) -> str:
    """Where an installer puts a wheel's member, relative to site-packages (the `.data` rule)."""
    top, _, rest = name.partition("/")
    scheme, _, inner = rest.partition("/")
    return inner if top.endswith(".data") and scheme in {"purelib", "platlib"} and inner else name


def _hostile(file: Path, what: str, why: str) -> InputError:
    return InputError(
        f"this archive is not used: {what}",
        where=Location(file),
        why=why,
        fix="get the archive again from its publisher",
    )
