"""Writes results as JUnit XML, for CI systems and other programs that read JUnit."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import junitparser
from junitparser import xunit2

from harness.ledger.junit.junit_stream import FORBIDDEN
from harness.outcome import Status


@dataclass(frozen=True, kw_only=True)
class JUnitCase:
    """One test case: `suite` is the cell, `name` the check.

    A case that did not run is never a pass: `Status.NOT_RUN` and similar statuses become <skipped> with the
    reason.
    """

    suite: str
    name: str
    status: Status
    reasons: tuple[str, ...] = ()
    seconds: float = 0.0
    properties: Mapping[str, str] = field(default_factory=dict)


def junit_xml(cases: Iterable[JUnitCase], suite_properties: Mapping[str, Mapping[str, str]]) -> bytes:
    """A JUnit file with one suite for each suite name of `cases`, both in the order of `cases`.

    suite_properties: suite -> properties of the suite, for example the axes of a cell.
    """
    suites: dict[str, xunit2.TestSuite] = {}
    for case in cases:
        suite = suites.get(case.suite)
        if suite is None:
            suite = suites[case.suite] = xunit2.TestSuite(_clean(case.suite))
            for name, value in suite_properties.get(case.suite, {}).items():
                suite.add_property(_clean(name), _clean(value))
        suite.add_testcase(_element(case))
    document = xunit2.JUnitXml("npu-matrix")
    for suite in suites.values():
        document.add_testsuite(suite)
    document.update_statistics()
    written = io.BytesIO()
    document.write(written, pretty=True)
    return written.getvalue()


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
    for name, value in {"status": case.status.value, **case.properties}.items():
        element.add_property(_clean(name), _clean(value))
    return element


def _result(
    kind: type[junitparser.junitparser.Result], message: str, status: Status, text: str
) -> junitparser.junitparser.Result:
    result = kind(message, status.value)
    result.text = text
    return result


def _clean(text: str) -> str:
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
