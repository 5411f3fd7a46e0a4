"""Merges JUnit files of any producer into one file, as a stream.

Elements are copied unchanged, but those of JUnit lose their namespace. A failure counts wherever it is: below
other elements, in the attributes of a case, a suite or the document, or outside every case.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Protocol
from xml.sax.saxutils import escape, quoteattr

from harness.errors import InfrastructureError, InputError, Location
from harness.ledger.junit.junit_stream import (
    FORBIDDEN,
    MARKS,
    RERUN_MARKS,
    WORST_FIRST,
    parse,
    says_failure,
    stated_status,
)
from harness.outcome import Evidence, Status

#: How many failed and how many flaky cases are listed by name; all of them are counted.
MAX_NAMED = 1000
#: The name of the test case that is added for a suite that failed as a whole, for example in its set-up.
SUITE_CASE = "(suite)"
#: Bytes reserved in the start tag of a suite for its counts, which are known only at its end.
_COUNTS_BYTES = 112
_NUMBER = re.compile(r"[0-9]{1,11}")
_COUNTED = ("tests", "failures", "errors", "skipped")
_CONTAINERS = frozenset({"testsuites", "testsuite", "testcase"})
_TEXTLESS = frozenset({*_CONTAINERS, "properties"})
#: The evidence of merged cases whose file says `hardware`.
CLAIMED = Status.CLAIMED.value
_FLAKY = frozenset({"flakyFailure", "flakyError"})
#: Suites and cases inside these elements are quoted output, which proves nothing. A failure in them counts.
_OUTPUT = frozenset({"system-out", "system-err", "properties", "property", *MARKS, *_FLAKY})
_FAILED = frozenset({Status.FAIL, Status.ERROR})


@dataclass(kw_only=True)
class CaseCounts:
    """Test cases by status. `flaky` counts the cases that passed after a failed attempt."""

    tests: int = 0
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    flaky: int = 0

    def add(self, other: CaseCounts) -> None:
        """Add the counts of `other`."""
        for name in (*_COUNTED, "flaky"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def since(self, earlier: CaseCounts) -> CaseCounts:
        """What was counted after `earlier`."""
        names = (*_COUNTED, "flaky")
        return CaseCounts(**{name: getattr(self, name) - getattr(earlier, name) for name in names})

    def case(self, status: Status, *, flaky: bool) -> None:
        """Count one case."""
        self.tests += 1
        self.failures += status is Status.FAIL
        self.errors += status is Status.ERROR
        self.skipped += status is Status.NOT_RUN
        self.flaky += flaky and status is Status.PASS


@dataclass(frozen=True, kw_only=True)
class MergedFile:
    """The counts of one file. `problem` says why the file is incomplete; it is empty for a complete file."""

    path: str
    counts: CaseCounts
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class MergedReport:
    """Counts over all files, and the first failed and flaky cases as `suite: name`."""

    files: tuple[MergedFile, ...]
    counts: CaseCounts
    failed: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()


class TextStream(Protocol):
    """Masks a text that arrives in parts."""

    def feed(self, text: str, /) -> str:
        """What can be written now."""

    def finish(self) -> str:
        """The rest."""


class Mask(Protocol):
    """Removes secrets from text, such as `harness.sources.secrets.masking.Masker`."""

    def text(self, text: str, /) -> str:
        """`text` without secrets."""

    def setting(self, name: str, value: str, /) -> str:
        """The value of the property `name` without secrets."""

    def stream(self) -> TextStream:
        """For a text that arrives in parts."""


def merge_junit(
    target: Path, sources: Iterable[Path], *, properties: Mapping[str, str] | None = None, mask: Mask
) -> MergedReport:
    """Write every suite of every source into `target`, which is replaced as a whole or stays unchanged.

    Elements are copied unchanged, including reruns and properties, except that `mask` removes secrets, for
    example from the environment in properties, and that a property `evidence` with the value `hardware`
    becomes `claimed`: only a ledger can prove it. The counts of suites are computed from
    their test cases. A case whose attributes say that it did not run or failed gets the corresponding
    element. For a source that cannot be read to its end, or that has fewer cases than it declares, a case
    with an error is added. properties: added to every outermost suite. The memory needed does not depend on
    the size of the files. InputError if a source does not exist or the target is no regular file,
    InfrastructureError when writing fails.
    """
    if target.exists() and not target.is_file():
        raise InputError(
            "the merged file cannot replace this",
            where=Location(target),
            why="it is a folder, a device or a pipe",
            fix="name another output file",
        )
    temporary = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w+b") as stream:
            merged = _merge(stream, sources, properties or {}, mask)
        temporary.replace(target)
    except OSError as error:
        raise InfrastructureError(
            "cannot write the merged file",
            where=Location(target),
            why=error.strerror or str(error),
            fix="free disk space, or choose another output file",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return merged


def _merge(
    stream: BinaryIO, sources: Iterable[Path], properties: Mapping[str, str], mask: Mask
) -> MergedReport:
    writer, names = _Writer(stream), _NamedCases()
    files: list[MergedFile] = []
    total = CaseCounts()
    writer.write('<?xml version="1.0" encoding="utf-8"?>\n')
    offset = writer.open_counted("testsuites", {"name": "npu-matrix"})
    for source in sources:
        copy = _Copy(writer, names, properties)
        problem = copy.finish(parse(source, _MaskedCopy(copy, mask)))
        if problem:
            copy.add_error_case(source, problem)
        files.append(MergedFile(path=str(source), counts=copy.counts, problem=problem))
        total.add(copy.counts)
    writer.close_counted("testsuites", offset, total)
    return MergedReport(
        files=tuple(files), counts=total, failed=tuple(names.failed), flaky=tuple(names.flaky)
    )


class _NamedCases:
    """The names of the first failed and flaky cases of all files."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.flaky: list[str] = []

    def note(self, suite: str, name: str, status: Status, *, flaky: bool) -> None:
        if status in _FAILED:
            names = self.failed
        elif flaky and status is Status.PASS:
            names = self.flaky
        else:
            return
        if len(names) < MAX_NAMED:
            names.append(f"{suite[:200]}: {name[:200]}")


class _Writer:
    """Writes elements to a seekable file: the counts in the start tag of a suite are written at its end."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        self._stream.write(text.encode())

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        self.write(f"<{name}{_attributes(attributes)}>")

    def end(self, name: str, after: str = "\n") -> None:
        self.write(f"</{name}>{after}")

    def empty(self, name: str, attributes: Mapping[str, str]) -> None:
        self.start(name, attributes)
        self.end(name)

    def open_counted(self, name: str, attributes: Mapping[str, str]) -> int:
        """Start a suite; returns the file offset of its counts, for `close_counted`."""
        others = {key: value for key, value in attributes.items() if key not in _COUNTED}
        self.write(f"<{name}{_attributes(others)}")
        offset = self._stream.tell()
        self.write(" " * _COUNTS_BYTES + ">\n")
        return offset

    def close_counted(self, name: str, offset: int, counts: CaseCounts) -> None:
        self.end(name)
        end = self._stream.tell()
        self._stream.seek(offset)
        self.write(_attributes({key: str(getattr(counts, key)) for key in _COUNTED})[:_COUNTS_BYTES])
        self._stream.seek(end)


def _attributes(attributes: Mapping[str, str]) -> str:
    return "".join(f" {name}={quoteattr(value)}" for name, value in attributes.items())


def _without_claims(attributes: dict[str, str]) -> dict[str, str]:
    """The attributes of a property; hardware evidence, which a JUnit file cannot prove, becomes `claimed`."""
    claim = _is_evidence(attributes) and _is_claim(attributes.get("value", ""))
    return {**attributes, "value": CLAIMED} if claim else attributes


def _is_evidence(attributes: Mapping[str, str]) -> bool:
    return attributes.get("name", "").strip().lower() == "evidence"


def _is_claim(text: str) -> bool:
    """Whether a text is `hardware`, or a part of it: elements below a property can divide its text."""
    word = text.strip().lower()
    return bool(word) and word in Evidence.HARDWARE.value


class _OpenSuite:
    def __init__(self, attributes: Mapping[str, str], offset: int) -> None:
        self.attributes = attributes
        self.offset = offset
        self.counts = CaseCounts()
        self.failed_as_whole = False
        self.has_suite_case = False


@dataclass(kw_only=True)
class _OpenCase:
    """A case whose end tag was not read yet. shown: its status by the marks directly below it.

    alone: whether a suite was opened for it, because it is in none. foreign: an element in it by which its
    producer says that it did not pass, and which JUnit does not have.
    """

    attributes: Mapping[str, str]
    alone: bool
    statuses: set[Status] = field(default_factory=set)
    shown: set[Status] = field(default_factory=set)
    flaky: bool = False
    foreign: str = ""


@dataclass(frozen=True, kw_only=True)
class _OpenElement:
    """An element whose end tag was not read yet.

    role: its name, or "" for a quoted suite or case. before: what the file had before the element.
    """

    name: str
    role: str
    attributes: Mapping[str, str]
    before: CaseCounts


class _Copy:
    """Copies the elements of one file into the merged file, and counts its cases."""

    def __init__(self, writer: _Writer, names: _NamedCases, properties: Mapping[str, str]) -> None:
        self.counts = CaseCounts()
        self._problem = ""
        self._writer = writer
        self._names = names
        self._properties = {
            FORBIDDEN.sub("\ufffd", key): FORBIDDEN.sub("\ufffd", value) for key, value in properties.items()
        }
        self._stack: list[_OpenElement] = []
        self._suites: list[_OpenSuite] = []
        self._cases: list[_OpenCase] = []
        self._namespaces: dict[str, str] = {}
        self._to_add: Mapping[str, str] = {}
        self._seen = CaseCounts()

    @property
    def _within(self) -> str:
        return self._stack[-1].role if self._stack else ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        within = self._within
        quoted = name in _CONTAINERS and any(element.role in _OUTPUT for element in self._stack)
        self._stack.append(
            _OpenElement(
                name=name,
                role="" if quoted else name,
                attributes=attributes,
                before=replace(self._seen),
            )
        )
        if name == "testsuites" and not quoted:
            self._namespaces |= {key: value for key, value in attributes.items() if key.startswith("xmlns:")}
            return
        if within == "testsuites":
            # Its prefixes were declared there, and that element is not copied.
            attributes = {**self._namespaces, **attributes}
        if name == "testsuite" and not quoted:
            self._open_suite(attributes)
            return
        if name == "testcase" and not quoted:
            alone = not self._suites
            self._cases.append(_OpenCase(attributes=attributes, alone=alone))
            if alone:
                self._open_suite({"name": attributes.get("classname", "")})
        elif name == "properties" and within == "testsuite" and self._to_add:
            self._writer.start(name, attributes)
            self._add_properties()
            return
        self._add_block()
        self._writer.start(name, _without_claims(attributes) if name == "property" else attributes)

    def text(self, data: str) -> None:
        if self._stack and self._within not in _TEXTLESS:
            in_evidence = any(one.name == "property" and _is_evidence(one.attributes) for one in self._stack)
            self._writer.write(escape(CLAIMED if in_evidence and _is_claim(data) else data))

    def end(self, name: str) -> None:
        element = self._stack.pop()
        if element.role == "testsuites":
            self._note_contradiction(element)
        elif element.role == "testsuite":
            self._note_contradiction(element)
            self._close_suite()
        elif element.role == "testcase":
            self._close_case()
        else:
            self._mark(name)
            # In any other element, a line end would become part of its text.
            self._writer.end(name, "\n" if self._within in _TEXTLESS else "")

    def _mark(self, name: str) -> None:
        """Note what the end of an element means for its case, or for its suite outside every case."""
        status = MARKS.get(name) or RERUN_MARKS.get(name)
        foreign = not status and says_failure(name) and not any(one.role in _OUTPUT for one in self._stack)
        if foreign:
            # JUnit does not say whether it is a failure or an error, but the test did not pass.
            status = Status.ERROR
        if self._cases and status:
            self._cases[-1].statuses.add(status)
            if foreign:
                self._cases[-1].foreign = name
            if name in MARKS and self._within == "testcase":
                self._cases[-1].shown.add(status)
        elif self._cases and name in _FLAKY:
            self._cases[-1].flaky = True
        elif status not in _FAILED or name in RERUN_MARKS:
            return
        elif self._suites:
            self._suites[-1].failed_as_whole = True
        else:
            self._problem = self._problem or f"it has an element <{name}> outside every suite"

    def _note_contradiction(self, element: _OpenElement) -> None:
        """Compare what a suite or the document declares with what it contains."""
        counts = self._seen.since(element.before)
        counts.errors += element.role == "testsuite" and self._suites[-1].failed_as_whole
        self._problem = self._problem or _contradiction(element, counts)

    def finish(self, problem: str) -> str:
        """Close the elements that a truncated file left open; returns the problem of the file, or ""."""
        while self._stack:
            element = self._stack.pop()
            if element.role == "testcase":
                # The missing part may contain its failure.
                self._cases[-1].statuses.add(Status.ERROR)
                self._cases[-1].shown.add(Status.ERROR)
                self._writer.empty("error", {"message": f"the file ends within this case: {problem}"})
                self._close_case()
            elif element.role == "testsuite":
                self._close_suite()
            elif element.role != "testsuites":
                self._mark(element.name)
                self._writer.end(element.name)
        return problem or self._problem

    def add_error_case(self, source: Path, problem: str) -> None:
        """Add a case with an error for an incomplete file, so that the merged file does not pass."""
        path = FORBIDDEN.sub("\ufffd", str(source))
        self._open_suite({"name": path})
        self._add_block()
        self._broken_case(path, "can be read to its end", problem)
        self._close_suite()

    def _broken_case(self, suite: str, name: str, message: str) -> None:
        self._writer.start("testcase", {"classname": suite, "name": name})
        self._writer.empty("error", {"message": FORBIDDEN.sub("\ufffd", message)})
        self._writer.end("testcase")
        self._count(suite, name, Status.ERROR, flaky=False)

    def _open_suite(self, attributes: Mapping[str, str]) -> None:
        outermost = not self._suites
        self._add_block()
        self._suites.append(_OpenSuite(attributes, self._writer.open_counted("testsuite", attributes)))
        if outermost:
            self._to_add = self._properties

    def _close_suite(self) -> None:
        self._add_block()
        suite = self._suites[-1]
        if suite.failed_as_whole and not suite.has_suite_case:
            name = suite.attributes.get("name", "")
            self._broken_case(
                name, SUITE_CASE, "the suite failed as a whole: see its own <error> or <failure> element"
            )
        self._suites.pop()
        self._writer.close_counted("testsuite", suite.offset, suite.counts)
        if self._suites:
            self._suites[-1].counts.add(suite.counts)
        else:
            self.counts.add(suite.counts)

    def _close_case(self) -> None:
        case = self._cases.pop()
        stated, attribute = stated_status(case.attributes)
        found = case.statuses | {stated}
        status = next((worst for worst in WORST_FIRST if worst in found), Status.PASS)
        mark = next((name for name, marked in MARKS.items() if marked is status), "")
        if mark and status not in case.shown:
            # Other programs look for the mark directly below the case.
            below = "" if status is stated else f"an element <{case.foreign or mark}> is further below"
            self._writer.empty(mark, {"message": below or attribute})
        self._writer.end("testcase")
        suite = self._suites[-1].attributes.get("name", "") or case.attributes.get("classname", "")
        self._count(suite, case.attributes.get("name", ""), status, flaky=case.flaky)
        if case.alone:
            self._close_suite()

    def _count(self, suite: str, name: str, status: Status, *, flaky: bool) -> None:
        self._seen.case(status, flaky=flaky)
        self._suites[-1].counts.case(status, flaky=flaky)
        self._suites[-1].has_suite_case |= name == SUITE_CASE and status in _FAILED
        self._names.note(suite, name, status, flaky=flaky)

    def _add_properties(self) -> None:
        for key, value in self._to_add.items():
            self._writer.empty("property", {"name": key, "value": value})
        self._to_add = {}

    def _add_block(self) -> None:
        if self._to_add:
            self._writer.start("properties", {})
            self._add_properties()
            self._writer.end("properties")


def _contradiction(element: _OpenElement, counts: CaseCounts) -> str:
    """How the attributes of a suite or document contradict its cases; "" if they do not."""
    attributes = element.attributes
    what = "the file" if element.role == "testsuites" else f"the suite {attributes.get('name', '')[:100]!r}"
    declared = attributes.get("tests", "").strip()
    if declared and not _NUMBER.fullmatch(declared):
        return f"{what} declares tests={declared[:40]!r}, which is not a number"
    if int(declared or 0) > counts.tests:
        return f"{what} declares {declared} tests, but contains {counts.tests}"
    status, attribute = stated_status(attributes)
    if status in _FAILED and not counts.failures + counts.errors:
        return f"{what} declares {attribute[:60]}, but contains no failed test"
    not_run = max(_number(attributes.get(name, "")) for name in ("skipped", "disabled"))
    if int(declared or 0) == counts.tests and not_run > counts.skipped + counts.failures + counts.errors:
        return f"{what} declares {not_run} skipped tests, but contains {counts.skipped}"
    if status is Status.NOT_RUN and counts.tests > counts.skipped:
        return f"{what} declares {attribute[:60]}, but contains a test that ran"
    return ""


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text.strip()) else 0


class _MaskedCopy:
    """Passes the elements of one file on without secrets."""

    def __init__(self, copy: _Copy, mask: Mask) -> None:
        self._copy = copy
        self._mask = mask
        self._text = mask.stream()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._finish_text()
        masked = {key: self._mask.text(value) for key, value in attributes.items()}
        if name == "property" and "value" in attributes:
            masked["value"] = self._mask.setting(attributes.get("name", ""), attributes["value"])
        self._copy.start(name, masked)

    def text(self, data: str) -> None:
        if masked := self._text.feed(data):
            self._copy.text(masked)

    def end(self, name: str) -> None:
        self._finish_text()
        self._copy.end(name)

    def _finish_text(self) -> None:
        if rest := self._text.finish():
            self._copy.text(rest)
