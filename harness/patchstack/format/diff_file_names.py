"""File names in the header lines of a patch, by the rules of git's apply.c (2.39)."""

from __future__ import annotations

import re

_DATE = re.compile(
    rb"[ \t](1970-01-01|1969-12-31) ([0-2]\d):([0-5]\d):00(?:\.0+)? ([-+])([0-2]\d):?([0-5]\d)\s*$"
)
_DEV_NULL = b"/dev/null"
#: The byte after a backslash in a quoted name -> the byte that it stands for.
ESCAPES = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\', strict=True))


def is_null(text: bytes) -> bool:
    """Whether a header line names /dev/null, which means that there is no file."""
    return text.startswith(_DEV_NULL) and (len(text) == len(_DEV_NULL) or text[9:10].isspace())


def is_epoch(text: bytes) -> bool:
    """Whether the date of a header line is the Unix epoch; some tools mark a missing file that way."""
    found = _DATE.search(text)
    if not found:
        return False
    day, hour, minute, sign, zone_hours, zone_minutes = found.groups()
    offset = (int(zone_hours) * 60 + int(zone_minutes)) * (-1 if sign == b"-" else 1)
    return int(hour) * 60 + int(minute) - offset == (0 if day == b"1970-01-01" else 24 * 60)


def read_name(text: bytes) -> bytes:
    """The file name in a header line: quoted, or up to a tab or the end of the line."""
    if text.startswith(b'"'):
        name, _rest = _unquote(text)
        return name if name is not None else b""
    return re.split(rb"[\t\r\n\v\f]", text, maxsplit=1)[0]


def _unquote(text: bytes) -> tuple[bytes | None, bytes]:
    """A C-quoted name and the text after it; None if the quoting is invalid."""
    name, at = bytearray(), 1
    while at < len(text):
        byte = text[at]
        if byte == ord('"'):
            return bytes(name), text[at + 1 :]
        if byte == ord("\\"):
            at += 1
            octal = re.match(rb"[0-3][0-7]{2}", text[at : at + 3])
            if octal:
                name.append(int(octal[0], 8))
                at += 3
                continue
            if at >= len(text) or text[at] not in ESCAPES:
                return None, b""
            byte = ESCAPES[text[at]]
        name.append(byte)
        at += 1
    return None, b""


def stripped(name: bytes) -> str | None:
    """The name without its first component, like `patch -p1`."""
    if name == _DEV_NULL:
        return None
    _first, slash, rest = name.partition(b"/")
    return decode_path(rest.lstrip(b"/")) if slash and rest.strip(b"/") else None


def decode_path(name: bytes) -> str:
    """A path as text with single slashes. Bytes that are not UTF-8 are kept as surrogates."""
    return re.sub(rb"/+", b"/", name).decode("utf-8", "surrogateescape")


def default_name(rest: bytes) -> str | None:
    """The file name of a `diff --git` line if its two names agree, otherwise None."""
    if rest.startswith(b'"'):
        first, after = _unquote(rest)
        second = read_name(after.lstrip(b" \t")) if after else b""
        pairs = [(first or b"", second)]
    elif b'"' in rest and rest.rstrip().endswith(b'"'):
        at = rest.index(b'"')
        pairs = [(rest[:at].rstrip(), _unquote(rest[at:])[0] or b"")]
    else:
        pairs = [(rest[:at], rest[at + 1 :]) for at, byte in enumerate(rest) if byte in b" \t"]
    for first, second in pairs:
        name = stripped(first)
        absolute = first.startswith(b"/") or second.startswith(b"/")
        if name is not None and name == stripped(second) and not absolute:
            return name
    return None
