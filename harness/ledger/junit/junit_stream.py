"""Parses JUnit files of any producer as a stream of events, in any encoding and with bounded memory."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol
from xml.parsers import expat

from harness.digest import CHUNK_BYTES
from harness.errors import InputError, Location
from harness.outcome import Status

# Characters that XML 1.0 does not allow, not even escaped.
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_REFERENCE = re.compile(r"&#(?:x(?P<hex>[0-9A-Fa-f]{1,8})|(?P<decimal>[0-9]{1,9}));")
_LONGEST_REFERENCE = 13
_DECLARED = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._-]{1,40})["']""")
# Text encodings, by the names that producers use; some of Python's codecs are not text encodings.
_TEXT_CODECS = re.compile(r"(?:utf_?(?:8|16|32)|iso|latin|windows|cp|gb|big5|shift|euc|koi8|us_ascii|ascii)")
#: Longer than any tag that a producer writes. The parser must keep a whole tag in memory.
MAX_TAG_BYTES = 32 << 20
MAX_DEPTH = 64

MARKS = {"failure": Status.FAIL, "error": Status.ERROR, "skipped": Status.NOT_RUN}
# Values of the attributes `status` and `result` of a case without a mark: gtest and ctest write disabled
# tests in this form.
_STATUS_WORDS = {
    **dict.fromkeys(("notrun", "disabled", "suppressed", "skipped", "ignored", "pending"), Status.NOT_RUN),
    **dict.fromkeys(("fail", "failed", "failure"), Status.FAIL),
    "error": Status.ERROR,
}


class Handler(Protocol):
    """Receives the events of one file. If it raises a ValueError, parsing ends with this problem."""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins."""

    def end(self, name: str) -> None:
        """The innermost element ends."""

    def text(self, data: str) -> None:
        """Text in the innermost element; one text may arrive in several calls."""


def unmarked_status(attributes: Mapping[str, str]) -> Status:
    """The status, by its attributes, of a case without <failure>, <error> or <skipped>; not always a pass."""
    stated = (_STATUS_WORDS.get(attributes.get(name, "").lower()) for name in ("status", "result"))
    return next(filter(None, stated), Status.PASS)


def parse(path: Path, handler: Handler) -> str:
    """Send the file's events to `handler`; returns why the file is incomplete or malformed, else "".

    InputError if it cannot be read at all. A document type declaration is refused: no producer needs one, and
    its entities could expand a small file to a huge one.
    """
    try:
        with path.open("rb") as stream:
            return _parse(stream, handler)
    except OSError as error:
        raise InputError(
            "cannot read the JUnit file",
            where=Location(path),
            why=error.strerror or str(error),
            fix="pass a file that a test runner wrote",
        ) from error


def _parse(stream: BinaryIO, handler: Handler) -> str:
    # `_utf8` has decoded the file already, by its declared encoding if that is a text encoding.
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    guard = _Guard(handler)
    parser.StartElementHandler = guard.start
    parser.EndElementHandler = guard.end
    parser.CharacterDataHandler = handler.text
    parser.StartDoctypeDeclHandler = _refuse_doctype
    fed = 0
    try:
        for chunk in _utf8(stream):
            parser.Parse(chunk, False)
            fed += len(chunk)
            if fed - parser.CurrentByteIndex > MAX_TAG_BYTES:
                return f"a tag in the file is longer than {MAX_TAG_BYTES >> 20} MiB"
        parser.Parse(b"", True)
    except (expat.ExpatError, ValueError) as error:
        return str(error)
    return ""


class _Guard:
    """Refuses files that are not JUnit, and elements that are nested too deep."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._depth = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._depth and name not in {"testsuites", "testsuite"}:
            raise ValueError(f"it is not a JUnit file: its outermost element is <{name[:60]}>")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"its elements are nested more than {MAX_DEPTH} levels deep")
        self._handler.start(name, attributes)

    def end(self, name: str) -> None:
        self._depth -= 1
        self._handler.end(name)


def _refuse_doctype(*_declaration: object) -> None:
    raise ValueError("it has a document type declaration")


def _utf8(stream: BinaryIO) -> Iterator[bytes]:
    """The file as UTF-8, with U+FFFD for characters that XML forbids and for bytes that cannot be decoded."""
    chunk = stream.read(CHUNK_BYTES)
    decoder = codecs.getincrementaldecoder(_codec(chunk))(errors="replace")
    rest, first = "", True
    while True:
        text = rest + decoder.decode(chunk, not chunk)
        if first:
            text, first = text.lstrip("\ufeff \t\r\n"), False
        cut = len(text)
        if chunk:
            # A character reference at the end may continue in the next chunk.
            start = text.rfind("&", max(0, cut - _LONGEST_REFERENCE))
            cut = start if start >= 0 else cut
        rest = text[cut:]
        yield _REFERENCE.sub(_allowed_reference, FORBIDDEN.sub("\ufffd", text[:cut])).encode()
        if not chunk:
            return
        chunk = stream.read(CHUNK_BYTES)


def _allowed_reference(reference: re.Match[str]) -> str:
    number = int(reference["hex"], 16) if reference["hex"] else int(reference["decimal"])
    allowed = number <= 0x10FFFF and not FORBIDDEN.match(chr(number))
    return reference[0] if allowed else "\ufffd"


def _codec(head: bytes) -> str:
    marks = {
        codecs.BOM_UTF8: "utf-8-sig",
        codecs.BOM_UTF32_LE: "utf-32",
        codecs.BOM_UTF32_BE: "utf-32",
        codecs.BOM_UTF16_LE: "utf-16",
        codecs.BOM_UTF16_BE: "utf-16",
        b"<\0": "utf-16-le",
        b"\0<": "utf-16-be",
    }
    for mark, name in marks.items():
        if head.startswith(mark):
            return name
    declared = _DECLARED.match(head)
    name = declared[1].decode().lower().replace("-", "_") if declared else "utf_8"
    # A declaration that is readable as ASCII cannot be UTF-16 or UTF-32, even if it says so.
    if not _TEXT_CODECS.match(name) or name.startswith(("utf_16", "utf16", "utf_32", "utf32")):
        return "utf-8"
    try:
        return codecs.lookup(name).name
    except LookupError:
        return "utf-8"
