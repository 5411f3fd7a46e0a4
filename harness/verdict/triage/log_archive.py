"""Unpacks logs: gzip, bzip2, xz, zstd, zip, and tar in any of them. What was not read to its end is told.

The memory is bounded, and so is what an archive may unpack to: an archive of a few kB can hold terabytes.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from io import BufferedReader, RawIOBase
from itertools import chain
from typing import IO, BinaryIO, Protocol

from harness.verdict.triage.log_line import shown

BLOCK_BYTES = 1 << 18
#: All that is read of an archive, the memory that a decompressor may use, and how many files are read.
MOST_UNPACKED = 1 << 31
MOST_MEMORY = 1 << 28
MOST_FILES = 1000
#: Archives in archives: a tar in gzip has two.
MOST_LAYERS = 4
#: A zip archive that is no file on a disk is copied up to this size.
MOST_COPIED = 1 << 30
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
TAR, TAR_AT = b"ustar", 257
#: zlib's number for "expect the header of gzip".
GZIP_WINDOW = 31
ZSTD_BYTES = 1 << 10


class _Decompressor(Protocol):
    """What those of bz2, lzma and zlib (see `_Zlib`) have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Zlib:
    """zlib's decompressor with the interface of the others."""

    def __init__(self) -> None:
        self._own = zlib.decompressobj(GZIP_WINDOW)

    @property
    def eof(self) -> bool:
        return self._own.eof

    @property
    def unused_data(self) -> bytes:
        return self._own.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._own.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._own.decompress(self._own.unconsumed_tail + data, max_length)


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MOST_MEMORY)


class _Zstd:
    """The decompressor of Python 3.14 or of the package `zstandard`, with the interface of the others."""

    def __init__(self) -> None:
        self._waiting = b""
        try:
            self._library = importlib.import_module("compression.zstd")
            self._own = self._library.ZstdDecompressor()
        except ImportError:
            self._library = importlib.import_module("zstandard")
            self._own = self._library.ZstdDecompressor(max_window_size=MOST_MEMORY).decompressobj()

    @property
    def eof(self) -> bool:
        return bool(self._own.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._own.unused_data) + self._waiting

    @property
    def needs_input(self) -> bool:
        return not self._waiting

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Of a small part of the data: so little input unpacks to at most about 32 MB."""
        data = self._waiting + data
        part = min(ZSTD_BYTES, max_length)
        self._waiting = data[part:]
        try:
            return bytes(self._own.decompress(data[:part]))
        except self._library.ZstdError as error:
            raise ValueError(str(error)) from error


COMPRESSED: tuple[tuple[bytes, Callable[[], _Decompressor]], ...] = (
    (b"\x1f\x8b\x08", _Zlib),
    (b"BZh", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", _xz),
    (b"\x28\xb5\x2f\xfd", _Zstd),
)
_DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile)


@dataclass(kw_only=True)
class LogContent:
    """One log of an archive. name: of its file there, "" without one. problems: what was not read, in words.

    The blocks must be read before the next log is asked for; `problems` is complete then.
    """

    name: str
    blocks: Iterator[bytes]
    problems: list[str] = field(default_factory=list)


@dataclass
class _Budget:
    """How much may still be unpacked."""

    left: int = MOST_UNPACKED


def log_contents(stream: BinaryIO) -> Iterator[LogContent]:
    """The logs in a file or stream: one, or the files of an archive."""
    first, blocks = peeked(_read(stream))
    if first.startswith(ZIP):
        yield from _of_zip(_seekable(stream, blocks), _Budget())
    else:
        yield from _layers(LogContent(name="", blocks=blocks), _Budget(), MOST_LAYERS)


def peeked(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first block, and all blocks."""
    first = next(blocks, b"")
    return first, chain([first], blocks)


def _layers(content: LogContent, budget: _Budget, most: int) -> Iterator[LogContent]:
    """A log, or what is in it if it is an archive."""
    first, content.blocks = peeked(content.blocks)
    new = next((new for magic, new in COMPRESSED if first.startswith(magic)), None)
    is_tar = first[TAR_AT : TAR_AT + len(TAR)] == TAR
    if most and new:
        content.blocks = _unpacked(content, new, budget)
        yield from _layers(content, budget, most - 1)
    elif most and is_tar:
        yield from _of_tar(content, budget, most - 1)
    else:
        yield content


def _within(blocks: Iterable[bytes], content: LogContent, budget: _Budget) -> Iterator[bytes]:
    """The blocks up to the budget; a problem if there are more, or if they cannot be read on."""
    try:
        for block in blocks:
            yield block[: budget.left]
            budget.left -= len(block)
            if budget.left <= 0:
                content.problems.append(
                    f"only the first {MOST_UNPACKED >> 20} MiB that the archive unpacks to were read"
                )
                return
    except ImportError as error:
        content.problems.append(f"the archive cannot be read: {error}")
    except _DAMAGED as error:
        content.problems.append(f"the archive cannot be read on: {shown(str(error), 200) or 'it is cut'}")


def _unpacked(content: LogContent, new: Callable[[], _Decompressor], budget: _Budget) -> Iterator[bytes]:
    """The content of a compressed file, which may have several members."""
    return _within(_members(content.blocks, new), content, budget)


def _members(blocks: Iterable[bytes], new: Callable[[], _Decompressor]) -> Iterator[bytes]:
    unpacker, is_begun = new(), False
    for block in blocks:
        waiting = block
        while waiting:
            if unpacker.eof:
                # Zeros may fill the file.
                if not waiting.strip(b"\0"):
                    break
                unpacker = new()
            content = unpacker.decompress(waiting, BLOCK_BYTES)
            yield from [content] if content else []
            while not unpacker.eof and not unpacker.needs_input:
                content = unpacker.decompress(b"", BLOCK_BYTES)
                yield from [content] if content else []
            waiting = unpacker.unused_data if unpacker.eof else b""
        is_begun = True
    if is_begun and not unpacker.eof:
        raise EOFError("it is cut, or still written")


class _Reader(RawIOBase):
    """Blocks as a file that can be read once."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read up to the length of the buffer; 0 at the end."""
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = block
        part = self._rest[: len(buffer)]
        buffer[: len(part)] = part
        self._rest = self._rest[len(part) :]
        return len(part)


def _of_tar(content: LogContent, budget: _Budget, most: int) -> Iterator[LogContent]:
    """The regular files of a tar archive, in its order."""
    read = 0
    try:
        with tarfile.open(fileobj=BufferedReader(_Reader(content.blocks)), mode="r|") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isreg() and member.size else None
                if file is None or budget.left <= 0:
                    continue
                if read == MOST_FILES:
                    content.problems.append(f"only the first {MOST_FILES} files of the archive were read")
                    break
                read += 1
                yield from _layers(_named(member.name, file, content, budget), budget, most)
    except _DAMAGED as error:
        content.problems.append(f"the archive cannot be read on: {shown(str(error), 200)}")
    if not read or content.problems:
        yield LogContent(name="", blocks=iter(()), problems=content.problems)


def _of_zip(stream: BinaryIO, budget: _Budget) -> Iterator[LogContent]:
    """The files of a zip archive, in its order."""
    whole = LogContent(name="", blocks=iter(()))
    try:
        with zipfile.ZipFile(stream) as archive:
            files = [one for one in archive.infolist() if one.file_size and not one.is_dir()]
            if len(files) > MOST_FILES:
                whole.problems.append(f"only the first {MOST_FILES} files of the archive were read")
            for one in files[:MOST_FILES]:
                with closing(archive.open(one)) as file:
                    yield from _layers(_named(one.filename, file, whole, budget), budget, MOST_LAYERS - 1)
            if files and not whole.problems:
                return
    except (*_DAMAGED, RuntimeError, NotImplementedError) as error:
        # A password, or a method of compression that Python does not have.
        whole.problems.append(f"the archive cannot be read: {shown(str(error), 200)}")
    yield whole


def _named(name: str, file: IO[bytes], whole: LogContent, budget: _Budget) -> LogContent:
    content = LogContent(name=shown(name, 200), blocks=iter(()))
    content.blocks = _within(_read(file), content, budget)
    content.problems += whole.problems
    return content


def _read(file: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: file.read(BLOCK_BYTES), b"")


def _seekable(stream: BinaryIO, blocks: Iterator[bytes]) -> BinaryIO:
    """The stream from its beginning; a copy if it is a pipe."""
    if stream.seekable():
        stream.seek(0)
        return stream
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - it is gone when nobody refers to it
    for block in blocks:
        copy.write(block)
        if copy.tell() > MOST_COPIED:
            break
    copy.seek(0)
    return copy
