"""JUnit XML: out for other programs to read, in from any producer, cut-off files included."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import junitparser
from junitparser import xunit2

from harness.errors import InfrastructureError, Location
from harness.ledger.junit.junit_stream import FORBIDDEN, MARKS, RERUNS, parse, unmarked_status
from harness.outcome import Status

# The worst mark of a case wins: a case may carry several (a failure, then an error while cleaning up).
WORST_FIRST = (Status.ERROR, Status.FAIL, Status.NOT_RUN)
RED = frozenset({Status.FAIL, Status.INCONCLUSIVE, Status.ERROR})
# JUnit knows four statuses; ours stands in a property, believed where it refines the mark, never against it.
REFINED_STATUSES = {
    Status.FAIL: {Status.INCONCLUSIVE},
    Status.NOT_RUN: {Status.BLOCKED, Status.STALE, Status.UNSUPPORTED},
    Status.PASS: set(Status) - {Status.PASS},
}
#: The case that stands for a suite which broke as a whole.
SUITE_CASE = "(suite)"
#: Characters kept of one failure's text, and properties of one case, when reading.
MAX_TEXT_CHARACTERS = 1 << 16
MAX_PROPERTIES = 1000


@dataclass(frozen=True, kw_only=True)
class JUnitCase:
    """One test case: `suite` is the cell and `name` the check when we write, the producer's own when we read.

    A case that did not run is never a pass: `Status.NOT_RUN` and its like become <skipped> with the reason.
    reruns: what each failed attempt before the last one attributes, as far as the producer tells.
    """

    suite: str
    name: str
    status: Status
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    reruns: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    log: str = ""

    @property
    def flaky(self) -> bool:
        """Whether it passed only after it had failed: no failure, and no clean pass."""
        return self.status is Status.PASS and bool(self.reruns)


@dataclass(frozen=True, kw_only=True)
class JUnitFile:
    """What could be read; `problem` says what is wrong with the file, and is empty for a sound one."""

    cases: tuple[JUnitCase, ...]
    problem: str = ""

    @property
    def complete(self) -> bool:
        """Whether the file ended where it should: only then do its cases prove that nothing else ran."""
        return not self.problem


def write_junit(
    path: Path,
    cases: Iterable[JUnitCase],
    *,
    title: str = "npu-matrix",
    suite_properties: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Write `cases` grouped by suite, in their order; the file appears whole or not at all.

    suite_properties: suite -> properties of the suite, for example the axes of a cell.
    """
    suites: dict[str, xunit2.TestSuite] = {}
    for case in cases:
        suite = suites.get(case.suite)
        if suite is None:
            suite = suites[case.suite] = xunit2.TestSuite(_clean(case.suite))
            for name, value in (suite_properties or {}).get(case.suite, {}).items():
                suite.add_property(_clean(name), _clean(value))
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
    """All cases of a JUnit file of any producer; of a cut-off or malformed one, those before the fault.

    InputError when there is no such file.
    """
    reader = _JUnitReader()
    problem = parse(path, reader) or reader.problem
    return JUnitFile(cases=tuple(reader.cases), problem=problem)


def _element(case: JUnitCase) -> xunit2.TestCase:
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
    kind = xunit2.FlakyFailure if case.status is Status.PASS else xunit2.RerunFailure
    for attempt in case.reruns:
        rerun = kind(_clean(attempt.split("\n", 1)[0]), "rerun")
        rerun.stack_trace = _clean(attempt)
        element.add_interim_result(rerun)
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


class _JUnitReader:
    """Collects cases from events; of each it keeps its marks and the beginning of their texts."""

    def __init__(self) -> None:
        self.cases: list[JUnitCase] = []
        self.problem = ""
        self._stack: list[str] = []
        self._suites: list[_Suite] = []
        self._case: dict[str, str] | None = None
        self._statuses: list[Status] = []
        self._reasons: list[str] = []
        self._reruns: list[str] = []
        self._properties: dict[str, str] = {}
        self._text: list[str] = []
        self._room = 0
        self._message = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        within = self._stack[-1] if self._stack else ""
        self._stack.append(name)
        if name == "testsuite":
            self._suites.append(_Suite(attributes))
        elif name == "testcase":
            self._case, self._statuses, self._reasons, self._reruns = attributes, [], [], []
            self._properties = {}
        elif within in {"testcase", "testsuite"} and (name in MARKS or name in RERUNS):
            self._message = attributes.get("message", "")
            self._text, self._room = [], MAX_TEXT_CHARACTERS
        elif name == "property" and self._case is not None and len(self._properties) < MAX_PROPERTIES:
            self._properties[attributes.get("name", "")] = attributes.get("value", "")

    def end(self, name: str) -> None:
        self._stack.pop()
        within = self._stack[-1] if self._stack else ""
        if name == "testsuite" and self._suites:
            suite = self._suites[-1]
            if suite.broke and not suite.has_suite_case:
                self._keep(
                    JUnitCase(
                        suite=suite.name, name=SUITE_CASE, status=Status.ERROR, reasons=tuple(suite.broke)
                    ),
                    tests=0,
                )
            self._suites.pop()
            self.problem = self.problem or suite.missing()
            if self._suites:
                self._suites[-1].count(suite.tests, suite.red)
        elif name == "testcase" and self._case is not None:
            self._keep(self._finished(self._case))
            self._case = None
        elif name in MARKS and within == "testcase":
            self._statuses.append(MARKS[name])
            self._reasons.append(self._take_text())
        elif name in RERUNS and within == "testcase":
            self._reruns.append(self._take_text())
        elif name in {"failure", "error"} and within == "testsuite":
            # In its set-up for example: no case of it says so.
            self._suites[-1].broke.append(self._take_text())

    def text(self, data: str) -> None:
        if self._room > 0:
            self._text.append(data[: self._room])
            self._room -= len(data)

    def _take_text(self) -> str:
        text = "".join(self._text).strip()
        self._text, self._room = [], 0
        return text if self._message in text else f"{self._message}\n{text}".strip()

    def _keep(self, case: JUnitCase, *, tests: int = 1) -> None:
        self.cases.append(case)
        if self._suites:
            self._suites[-1].count(tests, int(case.status in RED))
            self._suites[-1].has_suite_case |= case.name == SUITE_CASE

    def _finished(self, attributes: dict[str, str]) -> JUnitCase:
        return JUnitCase(
            suite=(self._suites[-1].name if self._suites else "") or attributes.get("classname", ""),
            name=attributes.get("name", ""),
            status=self._status(attributes),
            reasons=tuple(reason for reason in self._reasons if reason),
            reruns=tuple(self._reruns),
            seconds=_seconds(attributes.get("time", "")),
            properties=self._properties,
        )

    def _status(self, attributes: dict[str, str]) -> Status:
        marked = next((status for status in WORST_FIRST if status in self._statuses), None)
        if marked is None:
            marked = unmarked_status(attributes)
        finer = {status.value: status for status in REFINED_STATUSES.get(marked, ())}
        return finer.get(self._properties.get("status", ""), marked)


class _Suite:
    """What a suite says of itself, and what it holds."""

    def __init__(self, attributes: dict[str, str]) -> None:
        self.name = attributes.get("name", "")
        self.broke: list[str] = []
        self.has_suite_case = False
        self.tests = 0
        self.red = 0
        self._attributes = attributes

    def count(self, tests: int, red: int) -> None:
        self.tests += tests
        self.red += red

    def missing(self) -> str:
        return missing_cases(self._attributes, self.tests, self.red)


def missing_cases(attributes: Mapping[str, str], tests: int, red: int) -> str:
    """What a suite's own counts say and its cases do not: a file that lost some is not a whole one."""
    name = attributes.get("name", "")[:100]
    wanted = _count(attributes.get("tests", ""))
    if wanted > tests:
        return f"the suite {name!r} says it has {wanted} tests, and {tests} are in it"
    bad = _count(attributes.get("failures", "")) + _count(attributes.get("errors", ""))
    if bad > red and not red:
        return f"the suite {name!r} says {bad} of its tests failed, and none in it did"
    return ""


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text.replace(",", ""))
    except ValueError:
        return 0.0
    return seconds if 0.0 <= seconds < float("inf") else 0.0
