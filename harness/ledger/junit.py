"""JUnit XML: out for other programs to read, in from any producer, cut-off files included."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

import junitparser
from junitparser import xunit2

from harness.digest import CHUNK_BYTES
from harness.errors import InfrastructureError, InputError, Location
from harness.outcome import Status

# What XML 1.0 cannot hold in any form, escaped or not.
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MARKS = {"failure": Status.FAIL, "error": Status.ERROR, "skipped": Status.NOT_RUN}
# The worst mark of a case wins: a case may carry several (a failure, then an error while cleaning up).
ORDER = (Status.ERROR, Status.FAIL, Status.NOT_RUN)
# JUnit knows four statuses; ours stands in a property, believed where it refines the mark, never against it.
FINER = {
    Status.FAIL: {Status.INCONCLUSIVE},
    Status.NOT_RUN: {Status.BLOCKED, Status.STALE, Status.UNSUPPORTED},
    Status.PASS: set(Status) - {Status.PASS},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One test case: `suite` is the cell and `name` the check when we write, the producer's own when we read.

    A case that did not run is never a pass: `Status.NOT_RUN` and its like become <skipped> with the reason.
    """

    suite: str
    name: str
    status: Status
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class JUnitFile:
    """What could be read; `problem` says what is wrong with the file, and is empty for a sound one."""

    cases: tuple[Case, ...]
    problem: str = ""

    @property
    def complete(self) -> bool:
        """Whether the file ended where it should: only then do its cases prove that nothing else ran."""
        return not self.problem


def write_junit(path: Path, cases: Iterable[Case], *, title: str = "npu-matrix") -> None:
    """Write `cases` grouped by suite, in their order; the file appears whole or not at all."""
    suites: dict[str, xunit2.TestSuite] = {}
    for case in cases:
        suite = suites.setdefault(case.suite, xunit2.TestSuite(_clean(case.suite)))
        suite.add_testcase(_element(case))
    document = xunit2.JUnitXml(title)
    for suite in suites.values():
        document.add_testsuite(suite)
    document.update_statistics()
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        document.write(str(temporary), pretty=True)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise InfrastructureError(
            "cannot write the JUnit file",
            where=Location(path),
            why=error.strerror or str(error),
            fix="make the folder writable, or choose another one with --reports",
        ) from error


def read_junit(path: Path) -> JUnitFile:
    """Read any JUnit file as a stream; of a cut-off or malformed one, the cases before the fault.

    InputError when there is no such file. A document type declaration is refused: no producer needs one, and
    entities are how a small file becomes a large one.
    """
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = _refuse_doctype
    problem = ""
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                parser.Parse(chunk, False)
            parser.Parse(b"", True)
    except OSError as error:
        raise InputError(
            "cannot read the JUnit file", where=Location(path), why=error.strerror or ""
        ) from error
    except (expat.ExpatError, ValueError, LookupError) as error:
        problem = str(error)
    if not problem and not reader.is_junit:
        problem = "there is no <testsuites> or <testsuite> in it"
    return JUnitFile(cases=tuple(reader.cases), problem=problem)


def _element(case: Case) -> xunit2.TestCase:
    element = xunit2.TestCase(_clean(case.name), _clean(case.suite), round(case.seconds, 3))
    text = _clean("\n".join(case.reasons))
    head = text.split("\n", 1)[0] if text else case.status.value
    match case.status:
        case Status.PASS:
            pass
        case Status.FAIL | Status.INCONCLUSIVE:
            element.result = [_result(junitparser.Failure, head, case.status, text)]
        case Status.ERROR:
            element.result = [_result(junitparser.Error, head, case.status, text)]
        case _:
            element.result = [_result(junitparser.Skipped, f"{case.status.value}: {head}", case.status, text)]
    for name, value in {"status": case.status.value, **case.properties}.items():
        element.add_property(_clean(name), _clean(value))
    if case.log:
        element.system_out = _clean(case.log)
    return element


def _result(
    kind: type[junitparser.junitparser.Result], message: str, status: Status, text: str
) -> junitparser.junitparser.Result:
    result = kind(message, status.value)
    result.text = text
    return result


def _clean(text: str) -> str:
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def _refuse_doctype(*_declaration: object) -> None:
    raise ValueError("it has a document type declaration")


class _Reader:
    """Collects cases from parser events; keeps only the open elements and one case at a time."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.is_junit = False
        self._suites: list[str] = []
        self._case: dict[str, str] | None = None
        self._statuses: list[Status] = []
        self._reasons: list[str] = []
        self._properties: dict[str, str] = {}
        self._text: list[str] = []
        self._message = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._text = []
        if name == "testsuite":
            self.is_junit = True
            self._suites.append(attributes.get("name", ""))
        elif name == "testsuites":
            self.is_junit = True
        elif name == "testcase":
            self._case, self._statuses, self._reasons, self._properties = attributes, [], [], {}
        elif self._case is not None and name in MARKS:
            self._statuses.append(MARKS[name])
            self._message = attributes.get("message", "")
        elif self._case is not None and name == "property":
            self._properties[attributes.get("name", "")] = attributes.get("value", "")

    def end(self, name: str) -> None:
        if name == "testsuite" and self._suites:
            self._suites.pop()
        elif name == "testcase" and self._case is not None:
            self.cases.append(self._finished(self._case))
            self._case = None
        elif self._case is not None and name in MARKS:
            reason = "".join(self._text).strip()
            self._reasons.append(reason if self._message in reason else f"{self._message}\n{reason}".strip())
        self._text = []

    def text(self, data: str) -> None:
        if self._case is not None:
            self._text.append(data)

    def _finished(self, attributes: dict[str, str]) -> Case:
        return Case(
            suite=(self._suites[-1] if self._suites else "") or attributes.get("classname", ""),
            name=attributes.get("name", ""),
            status=self._status(),
            reasons=tuple(reason for reason in self._reasons if reason),
            seconds=_seconds(attributes.get("time", "")),
            properties=self._properties,
        )

    def _status(self) -> Status:
        marked = next((status for status in ORDER if status in self._statuses), Status.PASS)
        finer = {status.value: status for status in FINER.get(marked, ())}
        return finer.get(self._properties.get("status", ""), marked)


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text.replace(",", "")))
    except ValueError:
        return 0.0
