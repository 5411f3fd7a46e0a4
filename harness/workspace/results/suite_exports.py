"""Results of upstreams' tests as a table, a ranked list of failures, JUnit, and for PyTorch's CI relay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.ledger.junit.junit_writer import JUnitCase, junit_xml
from harness.ledger.plan_record import SchemaVersion
from harness.outcome import Case, Status
from harness.upstream_tests.in_cell.file_results import Ended
from harness.upstream_tests.suite_measurements import GOOD, MeasuredTest
from harness.verdict.known_cases import ComparedCases, compare_cases
from harness.verdict.suite_known_failures import KnownFailures
from harness.workspace.results.suite_results import SuiteOfCell

#: The axes that name a row of the table.
TABLE_AXES = ("torch_npu", "verl", "vllm_ascend", "device")


@dataclass(frozen=True, kw_only=True)
class SuiteCounts:
    """The tests of a suite in a cell. ran: passed or failed. classes: kind of failure -> number."""

    suite: str
    cell: str
    axes: Mapping[str, str]
    commit: str
    not_run: str
    files: int
    tests: int
    ran: int
    passed: int
    skipped: int
    failed: int
    known: int
    new: int
    repaired: int
    classes: Mapping[str, int]
    disabled: int
    disabled_passing: int


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Failures of one class with one message: how many tests, in which suites, and the first of them."""

    kind: str
    message: str
    tests: int
    suites: Mapping[str, int]
    first: str


SUITES_SCHEMA = SchemaVersion(name="npu-matrix.suites", version=1)


@dataclass(frozen=True, kw_only=True)
class SuitesReport:
    """What `npu-matrix suites table --json` prints."""

    schema: SchemaVersion = SUITES_SCHEMA
    run: str
    suites: tuple[SuiteCounts, ...]
    failures: tuple[FailureGroup, ...]


def compared(one: SuiteOfCell, files: Sequence[KnownFailures]) -> ComparedCases:
    """The tests of a suite, compared with the known failures of its cell."""
    entries = [
        entry
        for file in files
        if file.suite == one.suite.name and file.covers(one.axes)
        for entry in file.tests
    ]
    return compare_cases(one.cases, entries)


def counts(one: SuiteOfCell, files: Sequence[KnownFailures]) -> SuiteCounts:
    """How the tests of a suite ended. A known failure counts in the class that its entry gives."""
    found = compared(one, files)
    tests = [test for _, test in one.suite.ids()]
    failed = [case for case in one.cases if case.failed]
    passed = sum(test.ended in {Ended.PASSED, Ended.XFAILED, Ended.XPASSED} for test in tests)
    classes = Counter(entry.kind for _, entry in found.known) + Counter(case.kind for case, _ in found.new)
    listed = [test for test in tests if test.disabled]
    return SuiteCounts(
        suite=one.suite.name,
        cell=one.cell,
        axes={name: one.axes[name] for name in TABLE_AXES if name in one.axes},
        commit=one.suite.commit,
        not_run=one.suite.not_run,
        files=len(one.suite.files),
        tests=len(tests),
        ran=passed + len(failed),
        passed=passed,
        skipped=sum(test.ended is Ended.SKIPPED for test in tests),
        failed=len(failed),
        known=len(found.known),
        new=len(found.new),
        repaired=len(found.repaired),
        classes=dict(classes.most_common()),
        disabled=len(listed),
        disabled_passing=sum(_passed(test) for test in listed),
    )


def _passed(test: MeasuredTest) -> bool:
    return test.ended in GOOD and test.ended is not Ended.SKIPPED


def failure_groups(suites: Sequence[SuiteOfCell]) -> list[FailureGroup]:
    """The failures by message, the most frequent first: what to simulate or repair next."""
    grouped: dict[tuple[str, str], list[Case]] = {}
    for one in suites:
        for case in one.cases:
            if case.failed:
                grouped.setdefault((case.kind, case.message), []).append(case)
    ranked = sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        FailureGroup(
            kind=kind,
            message=message,
            tests=len(cases),
            suites=dict(Counter(case.group for case in cases).most_common()),
            first=cases[0].id,
        )
        for (kind, message), cases in ranked
    ]


def table_lines(found: Sequence[SuiteCounts], groups: Sequence[FailureGroup], most: int) -> Iterator[str]:
    """Markdown: a row for each suite and cell, then the ranked failures."""
    yield (
        "| suite | torch_npu | tests | run | pass | skipped | known failures | new failures "
        "| failures by class |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in found:
        release = one.axes.get("torch_npu", "")
        if one.not_run:
            yield f"| {one.suite} | {release} | not run: {one.not_run} | | | | | | |"
            continue
        classes = ", ".join(f"{count} {kind}" for kind, count in one.classes.items()) or "none"
        share = f" ({100 * one.passed / one.ran:.1f} %)" if one.ran else ""
        columns = (
            *(one.suite, release, f"{one.tests} in {one.files} files", one.ran, f"{one.passed}{share}"),
            *(one.skipped, one.known, one.new, classes),
        )
        yield f"| {' | '.join(map(str, columns))} |"
    if groups:
        yield ""
        yield "| tests | class | message | first test |"
        yield "|---|---|---|---|"
        for group in groups[:most]:
            words = (group.tests, group.kind, _cell(group.message), f"`{_cell(group.first)}`")
            yield f"| {' | '.join(map(str, words))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def suites_junit(suites: Sequence[SuiteOfCell], files: Sequence[KnownFailures]) -> bytes:
    """JUnit with one suite for each suite of a cell, one case for each test. Known failures are skipped."""
    properties = {f"{one.cell}/{one.suite.name}": dict(one.axes) for one in suites}
    return junit_xml((case for one in suites for case in _junit_cases(one, files)), properties)


def _junit_cases(one: SuiteOfCell, files: Sequence[KnownFailures]) -> Iterator[JUnitCase]:
    found = compared(one, files)
    known = {case.id: entry for case, entry in found.known}
    repaired = {entry.id: why for entry, why in found.repaired}
    seconds = {name: test.seconds for name, test in one.suite.ids()}
    suite = f"{one.cell}/{one.suite.name}"
    if one.suite.not_run:
        yield JUnitCase(suite=suite, name="(suite)", status=Status.NOT_RUN, reasons=(one.suite.not_run,))
    for case in one.cases:
        reasons: tuple[str, ...]
        if case.id in repaired:
            reason = f"unexpected pass: it is listed as a known failure, but {repaired[case.id]}"
            status, reasons = Status.FAIL, (reason,)
        elif case.failed and case.id in known:
            entry = known[case.id]
            status, reasons = (
                Status.NOT_RUN,
                (f"known failure: {entry.kind}: {entry.message}: {entry.reason}",),
            )
        elif case.failed:
            status, reasons = Status.FAIL, (f"{case.kind}: {case.message}",)
        else:
            status, reasons = (Status.PASS, ()) if case.passed else (Status.NOT_RUN, ("skipped",))
        yield JUnitCase(
            suite=suite, name=case.id, status=status, reasons=reasons, seconds=seconds.get(case.id, 0.0)
        )


@dataclass(frozen=True, kw_only=True)
class RelayReport:
    """What a downstream repository reports to PyTorch's cross-repository CI relay (pytorch/rfcs RFC-0050).

    The RFC requires `conclusion` and `details_url`, and permits `summary`. `test_results` is what the page of
    the downstream repository can show beyond that.
    """

    status: str
    conclusion: str
    details_url: str
    summary: str
    test_results: Mapping[str, int]


def relay_report(found: Sequence[SuiteCounts], details_url: str) -> RelayReport:
    """The report on all suites. It is a success only if every suite ran and nothing was unexpected."""
    waiting = [one for one in found if one.not_run]
    ran = [one for one in found if not one.not_run]
    totals = {
        name: sum(getattr(one, name) for one in ran)
        for name in ("tests", "passed", "failed", "skipped", "known", "new", "repaired")
    }
    if not ran or not totals["passed"]:
        conclusion = "neutral"
    else:
        conclusion = "failure" if totals["new"] or totals["repaired"] or waiting else "success"
    lines = [
        f"{one.suite} ({one.cell}): {one.passed} of {one.ran} pass, {one.new} new failures, {one.known} known"
        for one in ran
    ]
    lines += [f"{one.suite} ({one.cell}) was not run: {one.not_run}" for one in waiting]
    return RelayReport(
        status="completed",
        conclusion=conclusion,
        details_url=details_url,
        summary="\n".join(lines),
        test_results=totals,
    )
