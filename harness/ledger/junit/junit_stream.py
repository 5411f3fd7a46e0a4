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
#: Further attempts of a case that failed at last; one that passed at last has <flakyFailure> instead.
RERUN_MARKS = {"rerunFailure": Status.FAIL, "rerunError": Status.FAIL}
#: The elements of JUnit, and their attributes that have a meaning here. Handlers receive them in this
#: spelling, whatever prefix or capitals a producer writes.
ELEMENTS = (
    *("testsuites", "testsuite", "testcase", "properties", "property", "system-out", "system-err"),
    *(*MARKS, "flakyFailure", "flakyError", *RERUN_MARKS),
)
_ATTRIBUTES = (
    *("name", "classname", "value", "tests", "failures", "errors", "skipped", "disabled", "status", "result"),
)
_ELEMENTS = {name.lower(): name for name in ELEMENTS}
_XINCLUDE = "http://www.w3.org/2001/XInclude"
# Values of the attributes `status` and `result`, without "-", "_" and spaces. gtest and ctest write disabled
# tests in this form. A value that is in neither list is an error: it may say that the test failed.
_NOT_RUN_WORD = re.compile(
    r"not(?:run|executed)|disabled|suppressed|skip(?:ped)?|ignored|pending|filtered|todo|unsupported"
)
_PASS_WORD = re.compile(
    r"pass(?:ed)?|ok|success(?:ful)?|succeeded|run|ran|completed?|executed|finished|done|fixed|true|yes|"
)
_FAIL_WORD = re.compile(r"fail(?:s|ed|ing|ure)?|false|no")
#: Elements with these names are not JUnit's, but a case or suite that contains one did not pass.
_FAILURE_NAME = re.compile(
    r"fail(?:ed|ures|ing)?|errors|errored|broken|abort(?:ed)?|crash(?:ed)?|panic(?:ked)?|killed|fatal"
    r"|timeout|timedout|exception"
)
_NOTHING = re.compile(r"false|no|none|0*(?:\.0*)?")
# Attributes by which a case or a suite can say that it failed.
_FAILED_ATTRIBUTES = {
    **dict.fromkeys(("fail", "failed", "failure", "failures", "failing"), Status.FAIL),
    **dict.fromkeys(("error", "errors", "errored"), Status.ERROR),
}
_OUTCOME_ATTRIBUTES = ("status", "result", "outcome", "success", "passed")
#: A test case can have several marks (a failure, then an error during clean-up): the first of these counts.
WORST_FIRST = (Status.ERROR, Status.FAIL, Status.NOT_RUN)


class Handler(Protocol):
    """Receives the events of one file. If it raises a ValueError, parsing ends with this problem."""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins."""

    def end(self, name: str) -> None:
        """The innermost element ends."""

    def text(self, data: str) -> None:
        """Text in the innermost element; one text may arrive in several calls."""


def stated_status(attributes: Mapping[str, str]) -> tuple[Status, str]:
    """The status that the attributes of a case or suite state, and the attribute that states it.

    `Status.PASS` if no attribute contradicts it. Marks such as <failure> are not considered.
    """
    found: dict[Status, str] = {}
    for name, value in attributes.items():
        key, word = _plain(name), re.sub(r"[-_\s]", "", value).lower()
        if key in _FAILED_ATTRIBUTES:
            status = Status.PASS if _NOTHING.fullmatch(word) else _FAILED_ATTRIBUTES[key]
        elif key in _OUTCOME_ATTRIBUTES:
            status = _status_of_word(word)
        else:
            continue
        found.setdefault(status, f"{name}={value}")
    return next(((worst, found[worst]) for worst in WORST_FIRST if worst in found), (Status.PASS, ""))


def _status_of_word(word: str) -> Status:
    if _PASS_WORD.fullmatch(word):
        return Status.PASS
    if _NOT_RUN_WORD.fullmatch(word):
        return Status.NOT_RUN
    return Status.FAIL if _FAIL_WORD.fullmatch(word) else Status.ERROR


def says_failure(name: str) -> bool:
    """Whether an element that JUnit does not have says by its name that a test did not pass."""
    return _FAILURE_NAME.fullmatch(re.sub(r"[-_.]", "", _plain(name))) is not None


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
    """Refuses files that are not JUnit, and elements that are nested too deep.

    Passes on the elements of JUnit without namespaces: producers disagree on them, and the default namespace
    of an element would hide the elements inside it from programs that read the merged file.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._names: list[str] = []
        self._prefixes: list[frozenset[str]] = [frozenset({"xml", "xmlns"})]

    def start(self, raw: str, attributes: dict[str, str]) -> None:
        name = _ELEMENTS.get(_plain(raw), raw)
        if not self._names and name not in {"testsuites", "testsuite"}:
            raise ValueError(f"it is not a JUnit file: its outermost element is <{name[:60]}>")
        if "\ufffd" in name or any("\ufffd" in key for key in attributes):
            raise ValueError(f"the name of an element or attribute is damaged: <{name[:60]}>")
        if _plain(raw) == "include" and (raw != "include" or _XINCLUDE in attributes.values()):
            raise ValueError("it includes another file (XInclude), which is not read")
        self._names.append(name)
        if len(self._names) > MAX_DEPTH:
            raise ValueError(f"its elements are nested more than {MAX_DEPTH} levels deep")
        declared = frozenset(key[6:] for key in attributes if key.startswith("xmlns:"))
        self._prefixes.append(self._prefixes[-1] | declared)
        attributes = {self._bound(key): value for key, value in attributes.items() if key != "xmlns"}
        self._names[-1] = self._bound(name)
        self._handler.start(
            self._names[-1], _plain_attributes(attributes) if name in ELEMENTS else attributes
        )

    def end(self, _raw: str) -> None:
        self._prefixes.pop()
        self._handler.end(self._names.pop())

    def _bound(self, name: str) -> str:
        """The name; without its prefix if that is not declared, which many programs cannot read."""
        prefix, colon, rest = name.partition(":")
        if not colon or prefix in self._prefixes[-1]:
            return name
        rest = rest.replace(":", "_")
        return rest if rest[:1].isalpha() else f"_{rest}"


def _plain(name: str) -> str:
    """A name without its namespace prefix, in lower case."""
    return name.rpartition(":")[2].lower()


def _plain_attributes(attributes: dict[str, str]) -> dict[str, str]:
    """The attributes, with those that have a meaning in JUnit in its spelling."""
    found = dict(attributes)
    for key in attributes:
        plain = _plain(key)
        if plain in _ATTRIBUTES and plain not in attributes and not key.startswith("xmlns:"):
            found[plain] = found.pop(key)
    return found


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
