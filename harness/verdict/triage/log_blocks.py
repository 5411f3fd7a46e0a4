"""Reads a log in blocks of UTF-8 with line feeds: decodes UTF-16, reads JSON strings and carriage returns.

The memory is bounded, whatever the log contains. Archives are unpacked before, in `log_archive`.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

from harness.verdict.triage.json_text import unquoted
from harness.verdict.triage.log_archive import BLOCK_BYTES, peeked

__all__ = ["BLOCK_BYTES", "log_blocks"]
BYTE_ORDER_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def log_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The content of a log, in blocks that are not empty."""
    first, blocks = peeked(blocks)
    for mark, encoding in BYTE_ORDER_MARKS:
        if first.startswith(mark):
            first, blocks = peeked(_decoded(blocks, encoding))
    if first.startswith(codecs.BOM_UTF8):
        first = first[len(codecs.BOM_UTF8) :]
        blocks = chain([first], _rest(blocks))
    first, blocks = peeked(unquoted(first, blocks))
    if b"\n" not in first and b"\r" in first.rstrip(b"\r"):
        # Old terminals and some collectors of logs end lines with carriage returns alone.
        blocks = (block.replace(b"\r", b"\n") for block in blocks)
    return (block for block in blocks if block)


def _rest(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """All blocks but the first."""
    next(blocks, b"")
    return blocks


def _decoded(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """UTF-16 after its byte order mark, as UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    for block in blocks:
        yield decoder.decode(block).removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").encode("utf-8", "replace")
