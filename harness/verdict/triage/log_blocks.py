"""Reads a log in blocks of UTF-8 with line feeds: unpacks gzip, decodes UTF-16, reads lone carriage returns.

The memory is bounded, whatever the log contains. A damaged or cut archive ends where it cannot be read on.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO

BLOCK_BYTES = 1 << 18
GZIP = b"\x1f\x8b\x08"
#: zlib's number for "expect the header of gzip".
GZIP_WINDOW = 31
BYTE_ORDER_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def log_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """The content of a log, in blocks that are not empty."""
    first, blocks = _peeked(iter(lambda: stream.read(BLOCK_BYTES), b""))
    if first.startswith(GZIP):
        first, blocks = _peeked(_unpacked(blocks))
    for mark, encoding in BYTE_ORDER_MARKS:
        if first.startswith(mark):
            first, blocks = _peeked(_decoded(blocks, encoding))
    if first.startswith(codecs.BOM_UTF8):
        blocks = chain([first[len(codecs.BOM_UTF8) :]], _rest(blocks))
    if b"\n" not in first and b"\r" in first.rstrip(b"\r"):
        # Old terminals and some collectors of logs end lines with carriage returns alone.
        blocks = (block.replace(b"\r", b"\n") for block in blocks)
    return (block for block in blocks if block)


def _peeked(blocks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first block, and all blocks."""
    first = next(blocks, b"")
    return first, chain([first], blocks)


def _rest(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """All blocks but the first."""
    next(blocks, b"")
    return blocks


def _unpacked(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The content of a gzip archive, which may have several members."""
    unpacker = zlib.decompressobj(GZIP_WINDOW)
    for block in blocks:
        waiting = block
        while waiting:
            if unpacker.eof:
                unpacker = zlib.decompressobj(GZIP_WINDOW)
            try:
                content = unpacker.decompress(waiting, BLOCK_BYTES)
            except zlib.error:
                return
            if content:
                yield content
            waiting = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail


def _decoded(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """UTF-16 after its byte order mark, as UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in blocks:
        yield decoder.decode(block).removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").encode("utf-8", "replace")
