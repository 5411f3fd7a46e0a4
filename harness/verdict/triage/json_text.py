"""Reads a log that is one JSON string, or one JSON array of strings, as an API of a CI returns it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

_TOKEN = re.compile(rb'\\u[0-9a-fA-F]{4}|\\["\\/bfnrt]|"|[^"\\]+|\\')
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"", b"f": b"\n"}
_BEGINNING = re.compile(rb'\s*(?:\[\s*)?"')
#: What an escape that is cut at the end of a block can look like.
_CUT = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?$")
_BETWEEN = b" \t\r\n,[]"


def unquoted(first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks of a log; if it is JSON of the two forms, those of its text, with a line for each string."""
    if not _BEGINNING.match(first) or not _is_json(first):
        return blocks
    return _text(blocks)


def _is_json(first: bytes) -> bool:
    """Whether a first block has nothing but strings, without line feeds in them, and one that ends lines."""
    inside, strings, has_escape = False, 0, False
    for token in _TOKEN.findall(first):
        if token == b'"':
            inside, strings = not inside, strings + inside
        elif inside:
            has_escape |= token == b"\\n"
            if b"\n" in token:
                return False
        elif token.strip(_BETWEEN):
            return False
    is_array = first.lstrip().startswith(b"[")
    return is_array or (has_escape and strings <= 1)


def _text(blocks: Iterator[bytes]) -> Iterator[bytes]:
    inside, rest, ends_line = False, b"", True
    for block in chain(blocks, [b""]):
        data = rest + block
        cut = _CUT.search(data) if block else None
        # A backslash that is itself escaped begins no escape.
        rest = data[cut.start() :] if cut and not _is_escaped(data, cut.start()) else b""
        parts = []
        for token in _TOKEN.findall(data[: len(data) - len(rest)]):
            if token == b'"':
                parts.append(b"\n" if inside and not ends_line else b"")
                inside, ends_line = not inside, False
            elif inside:
                parts.append(_plain(token))
                ends_line = parts[-1].endswith(b"\n")
        yield b"".join(parts)


def _is_escaped(data: bytes, at: int) -> bool:
    before = data[:at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _plain(token: bytes) -> bytes:
    if not token.startswith(b"\\") or len(token) == 1:
        return token
    if token[1:2] == b"u":
        return chr(int(f"0x{token[2:].decode()}", 0)).encode("utf-8", "replace")
    return _ESCAPED.get(token[1:], token[1:])
