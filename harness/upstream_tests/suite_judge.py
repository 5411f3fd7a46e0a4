"""Judges suites of upstreams' tests. Each test that failed or passed is a case of the judgement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from harness.outcome import Case, Judgement, Status
from harness.upstream_tests.failure_classes import message_group
from harness.upstream_tests.in_cell.file_results import Ended
from harness.upstream_tests.suite_measurements import (
    GOOD,
    FailureClass,
    MeasuredFile,
    MeasuredSuite,
    MeasuredTest,
    SuitesMeasured,
)

MOST_GROUPS = 8
TO_DO = (
    "The report's page of upstreams' tests has the traceback of each. `npu-matrix expect tests` writes the "
    "failures that are known into files of their own."
)
RAN = frozenset({Ended.PASSED, Ended.XFAILED, Ended.XPASSED})


def judge(measured: SuitesMeasured, _params: Mapping[str, Any]) -> Judgement:
    """Fail if a test failed. Suites that were not run, or of which no test ran, are no pass."""
    ran = [suite for suite in measured.suites if not suite.not_run]
    waiting = [suite for suite in measured.suites if suite.not_run]
    unrun = tuple(f"{suite.name} was not run: {suite.not_run}" for suite in waiting)
    fixes = tuple(dict.fromkeys(suite.fix for suite in waiting if suite.fix))
    if not ran:
        return Judgement(status=Status.NOT_RUN, reasons=unrun, remedies=fixes)
    cases = tuple(case for suite in ran for case in suite_cases(suite))
    failed = [case for case in cases if case.failed]
    reasons = tuple(reason for suite in ran for reason in _reasons(suite))
    notes = tuple(note for suite in ran for note in suite_notes(suite))
    if failed:
        remedies = (TO_DO,)
        return Judgement(
            status=Status.FAIL, reasons=(*reasons, *unrun, *notes), remedies=(*remedies, *fixes), cases=cases
        )
    empty = [suite.name for suite in ran if not any(case.passed for case in suite_cases(suite))]
    if empty or unrun:
        nothing = tuple(f"no test of {name} ran: all were skipped or none was found" for name in empty)
        return Judgement(
            status=Status.INCONCLUSIVE, reasons=(*nothing, *unrun, *notes), remedies=fixes, cases=cases
        )
    return Judgement(status=Status.PASS, reasons=notes, cases=cases)


def suite_cases(suite: MeasuredSuite) -> Iterator[Case]:
    """A case for each test; a file that pytest could not read is a case of its own."""
    for file in suite.files:
        if file.kind is not None:
            yield _case(suite, file.path, FailureClass.COLLECTION, file.uncollected)
        for test in file.tests:
            name = f"{file.path}::{test.name}"
            if test.ended in GOOD:
                yield Case(group=suite.name, id=name, failed=False, passed=test.ended in RAN)
            else:
                yield _case(suite, name, test.kind or FailureClass.ERROR, test.message)


def _case(suite: MeasuredSuite, name: str, kind: FailureClass, message: str) -> Case:
    return Case(
        group=suite.name, id=name, failed=True, passed=False, kind=kind.value, message=message_group(message)
    )


def _reasons(suite: MeasuredSuite) -> Iterator[str]:
    failed = [case for case in suite_cases(suite) if case.failed]
    if not failed:
        return
    total = sum(len(file.tests) for file in suite.files)
    passed = sum(test.ended in RAN for file in suite.files for test in file.tests)
    yield f"{suite.name}: {len(failed)} of {total} tests failed, {passed} passed"
    groups = Counter((case.kind, case.message) for case in failed)
    for (kind, message), count in groups.most_common(MOST_GROUPS):
        first = next(case.id for case in failed if (case.kind, case.message) == (kind, message))
        yield f"{suite.name}: {count} {kind}: {message or 'no message'} (first: {first})"
    if len(groups) > MOST_GROUPS:
        yield f"{suite.name}: {len(groups) - MOST_GROUPS} more kinds of failures"


def suite_notes(suite: MeasuredSuite) -> Iterator[str]:
    """What a pass must not hide: another revision of the tests, and tests that the upstream disabled."""
    if not suite.exact:
        yield (
            f"Note: the tests of {suite.name} are those of {suite.rule}, because no mirror has the commit "
            "that the cell's package was built from."
        )
    believed = [test for _, test in suite.ids() if test.disabled]
    passing = [test for test in believed if test.ended in RAN]
    if believed:
        yield (
            f"Note: {len(passing)} of {len(believed)} tests of {suite.name} that the upstream's own list "
            "disables pass here."
        )


def counted(file: MeasuredFile) -> Counter[Ended]:
    """How many tests of a file ended in each way."""
    return Counter(test.ended for test in file.tests)


def is_good(test: MeasuredTest) -> bool:
    """Whether the test ended without a failure."""
    return test.ended in GOOD
