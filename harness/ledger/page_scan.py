"""Reads the rows of a damaged SQLite file from its pages, without its header, schema, trees and indexes.

Follows https://www.sqlite.org/fileformat2.html. Every page is read as if it were a leaf of a table, so rows
are found although the way to them is damaged. Rows of deleted or replaced content, and nonsense, are found as
well: the caller believes only rows whose digest matches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PAGE_SIZE = 4096
_HEADER_BYTES = 100
_LEAF_HEADER_BYTES = 8
_WAL_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_REAL, _FIRST_BLOB = 7, 12

Value = int | float | bytes | None


@dataclass(frozen=True, kw_only=True)
class FoundRow:
    """A row with its row id; texts are bytes, and an integer primary key is None as it is the row id."""

    row_id: int
    values: tuple[Value, ...]


def scan_rows(file: Path) -> Iterator[FoundRow]:
    """All rows of a database file and of the write-ahead log beside it, in the order of the pages."""
    data = file.read_bytes()
    size = _page_size(data)
    pages = {number: data[start : start + size] for number, start in enumerate(range(0, len(data), size), 1)}
    log = file.with_name(f"{file.name}-wal")
    newer = _logged_pages(log.read_bytes(), size) if log.is_file() else {}
    current = {**pages, **newer}
    for number, page in [*pages.items(), *newer.items()]:
        yield from _rows_of_page(page, _HEADER_BYTES if number == 1 else 0, size, current)


def is_cut_off(file: Path) -> bool:
    """Whether the header of a database file names more pages than the file has."""
    with file.open("rb") as stream:
        header = stream.read(_HEADER_BYTES)
    return file.stat().st_size < max(1, int.from_bytes(header[28:32], "big")) * _page_size(header)


def _page_size(data: bytes) -> int:
    size = int.from_bytes(data[16:18], "big")
    size = 65536 if size == 1 else size
    return size if size >= 512 and size & (size - 1) == 0 else DEFAULT_PAGE_SIZE


def _logged_pages(log: bytes, size: int) -> dict[int, bytes]:
    step = _FRAME_HEADER_BYTES + size
    return {
        int.from_bytes(log[start : start + 4], "big"): log[start + _FRAME_HEADER_BYTES : start + step]
        for start in range(_WAL_HEADER_BYTES, len(log), step)
    }


def _rows_of_page(page: bytes, header: int, size: int, pages: dict[int, bytes]) -> Iterator[FoundRow]:
    at = header + _LEAF_HEADER_BYTES
    content = len(page)
    while at + 2 <= content:
        cell = int.from_bytes(page[at : at + 2], "big")
        at += 2
        if not at <= cell < len(page):
            continue
        content = min(content, cell)
        try:
            yield _row(page, cell, size, pages)
        except (ValueError, IndexError, struct.error, OverflowError):
            continue


def _row(page: bytes, cell: int, size: int, pages: dict[int, bytes]) -> FoundRow:
    length, at = _varint(page, cell)
    row_id, at = _varint(page, at)
    if length > size * (len(pages) + 1):
        raise ValueError(length)
    local = _local_bytes(length, size)
    payload = page[at : at + local]
    if local < length:
        number = int.from_bytes(page[at + local : at + local + 4], "big")
        parts, have = [payload], local
        while have < length:
            overflow = pages.get(number, b"")
            if len(overflow) != size:
                raise ValueError(number)
            parts.append(overflow[4:])
            have += size - 4
            number = int.from_bytes(overflow[:4], "big")
        payload = b"".join(parts)[:length]
    if len(payload) != length:
        raise ValueError(length)
    return FoundRow(row_id=_signed(row_id), values=tuple(_values(payload)))


def _local_bytes(length: int, size: int) -> int:
    """How many bytes of a row are on its leaf; the others are on overflow pages."""
    if length <= size - 35:
        return length
    least = (size - 12) * 32 // 255 - 23
    fitting = least + (length - least) % (size - 4)
    return fitting if fitting <= size - 35 else least


def _values(payload: bytes) -> Iterator[Value]:
    end, at = _varint(payload, 0)
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    if at != end:
        raise ValueError(end)
    for kind in kinds:
        length = _length(kind)
        data = payload[at : at + length]
        if len(data) != length:
            raise ValueError(kind)
        at += length
        yield _value(kind, data)


def _length(kind: int) -> int:
    if kind >= _FIRST_BLOB:
        return (kind - _FIRST_BLOB) // 2
    return 8 if kind == _REAL else _INTEGER_BYTES.get(kind, 0)


def _value(kind: int, data: bytes) -> Value:
    if kind == 0:
        return None
    if kind >= _FIRST_BLOB:
        return data
    if kind == _REAL:
        return float(struct.unpack(">d", data)[0])
    # The kinds 8 and 9 are the integers 0 and 1.
    return int.from_bytes(data, "big", signed=True) if data else kind - 8


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
