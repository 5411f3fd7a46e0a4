"""Any number of JUnit files into one, as a stream: what was written stays, what a file lost is an error."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from xml.sax.saxutils import escape, quoteattr

from harness.errors import InfrastructureError, Location
from harness.ledger.junit.junit_files import RED, SUITE_CASE, WORST_FIRST, missing_cases
from harness.ledger.junit.junit_stream import FORBIDDEN, MARKS, parse, unmarked_status
from harness.outcome import Status

#: Failed and flaky cases that are named; all are counted.
MAX_NAMED = 1000
#: Room for the counts of a suite, which are known only at its end.
_COUNTS_BYTES = 112
_COUNTED = ("tests", "failures", "errors", "skipped")
_TEXTLESS = frozenset({"testsuites", "testsuite", "testcase", "properties"})
_FLAKY = frozenset({"flakyFailure", "flakyError"})


@dataclass(kw_only=True)
class CaseCounts:
    """Cases by what they are; `flaky` ones passed after they had failed, and are also in `tests`."""

    tests: int = 0
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    flaky: int = 0

    def add(self, other: CaseCounts) -> None:
        """Count what `other` counted too."""
        for name in (*_COUNTED, "flaky"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def case(self, status: Status, *, flaky: bool) -> None:
        """Count one case."""
        self.tests += 1
        self.failures += status is Status.FAIL
        self.errors += status is Status.ERROR
        self.skipped += status is Status.NOT_RUN
        self.flaky += flaky and status is Status.PASS


@dataclass(frozen=True, kw_only=True)
class MergedFile:
    """What came out of one file; `problem` is "" for a whole one."""

    path: str
    counts: CaseCounts
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class MergedReport:
    """The result: counts over all files, and the first failed and flaky cases as `suite: name`."""

    files: tuple[MergedFile, ...]
    counts: CaseCounts
    failed: tuple[str, ...] = ()
    flaky: tuple[str, ...] = ()


def merge_junit(
    target: Path, sources: Iterable[Path], *, properties: Mapping[str, str] | None = None
) -> MergedReport:
    """Write every suite of every source into `target`, which appears whole or not at all.

    Elements are copied as they are, reruns and properties included; counts are those of the cases. A case
    that did not run by its attributes alone gets the mark that says so. A source that cannot be read to its
    end, or has lost cases, adds a case in error. properties: added to every outermost suite. Memory does not
    grow with the files. InputError for a source that is not there, InfrastructureError when writing fails.
    """
    temporary = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w+b") as stream:
            merged = _merge(stream, sources, properties or {})
        temporary.replace(target)
    except OSError as error:
        raise InfrastructureError(
            "cannot write the merged file",
            where=Location(target),
            why=error.strerror or str(error),
            fix="free space, or name another file",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return merged


def _merge(stream: BinaryIO, sources: Iterable[Path], properties: Mapping[str, str]) -> MergedReport:
    writer, names = _Writer(stream), _Names()
    files: list[MergedFile] = []
    total = CaseCounts()
    writer.write('<?xml version="1.0" encoding="utf-8"?>\n')
    place = writer.open_counted("testsuites", {"name": "npu-matrix"})
    for source in sources:
        copy = _Copy(writer, names, properties)
        problem = copy.finish(parse(source, copy))
        if problem:
            copy.add_error_case(source, problem)
        files.append(MergedFile(path=str(source), counts=copy.counts, problem=problem))
        total.add(copy.counts)
    writer.close_counted("testsuites", place, total)
    return MergedReport(
        files=tuple(files), counts=total, failed=tuple(names.failed), flaky=tuple(names.flaky)
    )


class _Names:
    """The first failed and flaky cases of all files."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.flaky: list[str] = []

    def note(self, suite: str, name: str, status: Status, *, flaky: bool) -> None:
        kept = self.failed if status in RED else self.flaky if flaky and status is Status.PASS else None
        if kept is not None and len(kept) < MAX_NAMED:
            kept.append(f"{suite[:200]}: {name[:200]}")


class _Writer:
    """Elements into a file that can be gone back in, for the counts at the head of a suite."""

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
        kept = {key: value for key, value in attributes.items() if key not in _COUNTED}
        self.write(f"<{name}{_attributes(kept)}")
        place = self._stream.tell()
        self.write(" " * _COUNTS_BYTES + ">\n")
        return place

    def close_counted(self, name: str, place: int, counts: CaseCounts) -> None:
        self.end(name)
        end = self._stream.tell()
        self._stream.seek(place)
        self.write(_attributes({key: str(getattr(counts, key)) for key in _COUNTED})[:_COUNTS_BYTES])
        self._stream.seek(end)


def _attributes(attributes: Mapping[str, str]) -> str:
    return "".join(f" {name}={quoteattr(value)}" for name, value in attributes.items())


class _OpenSuite:
    def __init__(self, attributes: Mapping[str, str], place: int) -> None:
        self.attributes = attributes
        self.place = place
        self.counts = CaseCounts()
        self.broke = False
        self.has_suite_case = False


class _Copy:
    """Copies one file's events into the merged one, and counts."""

    def __init__(self, writer: _Writer, names: _Names, properties: Mapping[str, str]) -> None:
        self.counts = CaseCounts()
        self._problem = ""
        self._writer = writer
        self._names = names
        self._properties = {
            FORBIDDEN.sub("\ufffd", key): FORBIDDEN.sub("\ufffd", value) for key, value in properties.items()
        }
        self._stack: list[str] = []
        self._suites: list[_OpenSuite] = []
        self._namespaces: dict[str, str] = {}
        self._to_add: Mapping[str, str] = {}
        self._case: dict[str, str] = {}
        self._case_alone = False
        self._statuses: set[Status] = set()
        self._flaky = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        within = self._stack[-1] if self._stack else ""
        self._stack.append(name)
        if name == "testsuites":
            self._namespaces = {key: value for key, value in attributes.items() if key.startswith("xmlns")}
            return
        if name == "testsuite":
            self._open_suite(attributes)
            return
        if name == "testcase":
            self._case, self._statuses, self._flaky = attributes, set(), False
            self._case_alone = not self._suites
            if self._case_alone:
                self._open_suite({"name": attributes.get("classname", "")})
        elif name == "properties" and within == "testsuite" and self._to_add:
            self._writer.start(name, attributes)
            self._add_properties()
            return
        self._add_block()
        self._writer.start(name, attributes)

    def text(self, data: str) -> None:
        if self._stack and self._stack[-1] not in _TEXTLESS:
            self._writer.write(escape(data))

    def end(self, name: str) -> None:
        self._stack.pop()
        within = self._stack[-1] if self._stack else ""
        if name == "testsuites":
            return
        if name == "testsuite":
            self._close_suite(whole=True)
            return
        if name == "testcase":
            self._close_case()
            return
        if within == "testcase" and name in MARKS:
            self._statuses.add(MARKS[name])
        elif within == "testcase" and name in _FLAKY:
            self._flaky = True
        elif within == "testsuite" and name in {"failure", "error"}:
            self._suites[-1].broke = True
        # Within anything else, a line end would become part of its text.
        self._writer.end(name, "\n" if within in _TEXTLESS else "")

    def finish(self, problem: str) -> str:
        """Close what a cut-off file left open; returns what is wrong with the file."""
        while self._stack:
            name = self._stack.pop()
            if name == "testcase":
                # Whether it passed stands in what is missing.
                self._statuses.add(Status.ERROR)
                self._writer.empty("error", {"message": f"the file ends within this case: {problem}"})
                self._close_case()
            elif name == "testsuite":
                self._close_suite(whole=False)
            elif name != "testsuites":
                self._writer.end(name)
        return problem or self._problem

    def add_error_case(self, source: Path, problem: str) -> None:
        """A case in error for a file that is not whole: it must not turn the merged one green."""
        path = FORBIDDEN.sub("\ufffd", str(source))
        self._open_suite({"name": path})
        self._add_block()
        self._broken_case(path, "can be read to its end", problem)
        self._close_suite(whole=False)

    def _broken_case(self, suite: str, name: str, message: str) -> None:
        self._writer.start("testcase", {"classname": suite, "name": name})
        self._writer.empty("error", {"message": FORBIDDEN.sub("\ufffd", message)})
        self._writer.end("testcase")
        self._count(suite, name, Status.ERROR, flaky=False)

    def _open_suite(self, attributes: Mapping[str, str]) -> None:
        outermost = not self._suites
        self._add_block()
        shown = {**self._namespaces, **attributes} if outermost else attributes
        self._suites.append(_OpenSuite(attributes, self._writer.open_counted("testsuite", shown)))
        if outermost:
            self._to_add = self._properties

    def _close_suite(self, *, whole: bool) -> None:
        self._add_block()
        suite = self._suites[-1]
        if suite.broke and not suite.has_suite_case:
            name = suite.attributes.get("name", "")
            self._broken_case(
                name, SUITE_CASE, "the suite itself broke: its own <error> or <failure> says why"
            )
        self._suites.pop()
        counts = suite.counts
        if whole and not self._problem:
            self._problem = missing_cases(suite.attributes, counts.tests, counts.failures + counts.errors)
        self._writer.close_counted("testsuite", suite.place, counts)
        if self._suites:
            self._suites[-1].counts.add(counts)
        else:
            self.counts.add(counts)

    def _close_case(self) -> None:
        status = next((one for one in WORST_FIRST if one in self._statuses), None)
        if status is None:
            status = unmarked_status(self._case)
            mark = next((name for name, one in MARKS.items() if one is status), "")
            if mark:
                stated = ", ".join(
                    f"{key}={self._case[key]}" for key in ("status", "result") if key in self._case
                )
                self._writer.empty(mark, {"message": stated})
        self._writer.end("testcase")
        suite = self._suites[-1].attributes.get("name", "") or self._case.get("classname", "")
        self._count(suite, self._case.get("name", ""), status, flaky=self._flaky)
        if self._case_alone:
            self._close_suite(whole=False)

    def _count(self, suite: str, name: str, status: Status, *, flaky: bool) -> None:
        self._suites[-1].counts.case(status, flaky=flaky)
        self._suites[-1].has_suite_case |= name == SUITE_CASE
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
