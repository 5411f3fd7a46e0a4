"""The page about upstreams' own test suites: each suite in each cell, and its failures by message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.outcome import Case, Evidence
from harness.report.model.marks import Mark
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel
from harness.report.pages.page_templates import PageWriter, anchor_of, environment
from harness.upstream_tests.in_cell.file_results import Ended
from harness.upstream_tests.suite_check import SUITE_CHECK_NAMES
from harness.upstream_tests.suite_judge import suite_cases
from harness.upstream_tests.suite_measurements import SUITES_FORMAT, MeasuredSuite
from harness.verdict.known_cases import ComparedCases, compare_cases

#: How many tests of a group are listed; all are counted.
MOST_TESTS = 40


@dataclass(frozen=True, kw_only=True)
class ShownGroup:
    """Failures of one class with one message. tests: the first of them; count: all. new: those not known."""

    kind: str
    message: str
    count: int
    new: int
    tests: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ShownSuite:
    """A suite in a cell. href: the part of the cell's page about the check, with the log and the files."""

    suite: MeasuredSuite
    cell: str
    title: str
    href: str
    evidence: Evidence
    counts: Mapping[str, int]
    compared: ComparedCases
    groups: tuple[ShownGroup, ...] = field(default=())

    @property
    def anchor(self) -> str:
        """The part of this page about it."""
        return anchor_of(f"{self.suite.name}-{self.cell}-{self.evidence.value}")

    @property
    def mark(self) -> Mark:
        """Whether it was run, has a failure that is not known, or one that is."""
        if self.suite.not_run:
            return Mark.NOT_RUN
        if self.compared.new:
            return Mark.FAIL
        return Mark.KNOWN_FAIL if self.counts["failed"] else Mark.PASS


@dataclass(frozen=True, kw_only=True)
class SuiteGrid:
    """Suites and the cells that ran them.

    columns: title of a cell, link to its page, and evidence. rows: name of a suite, and how it ended in each
    column, None where it was not planned.
    """

    columns: tuple[tuple[str, str, Evidence], ...]
    rows: tuple[tuple[str, tuple[ShownSuite | None, ...]], ...]


def suite_grid(suites: Sequence[ShownSuite]) -> SuiteGrid:
    """The suites as rows, in the order of their names, and the cells as columns."""
    columns = {(one.cell, one.evidence): (one.title, one.href, one.evidence) for one in suites}
    found = {(one.suite.name, (one.cell, one.evidence)): one for one in suites}
    names = sorted({one.suite.name for one in suites})
    return SuiteGrid(
        columns=tuple(columns.values()),
        rows=tuple((name, tuple(found.get((name, column)) for column in columns)) for name in names),
    )


def suites_page(model: ReportModel, writer: PageWriter) -> str:
    """The page as HTML."""
    suites = list(_shown(model))
    template = environment(writer, up="").get_template("suites.html")
    return template.render(
        model=model, headline=_headline(suites), suites=suites, grid=suite_grid(suites), most=MOST_TESTS
    )


def _headline(suites: Sequence[ShownSuite]) -> str:
    if not suites:
        return "No suite of an upstream was run."
    new = sum(len(one.compared.new) for one in suites)
    repaired = sum(len(one.compared.repaired) for one in suites)
    waiting = sum(bool(one.suite.not_run) for one in suites)
    text = f"New failures: {new}. Known failures that do not fail any more: {repaired}."
    return text + (f" Suites that were not run: {waiting}." if waiting else "")


def _shown(model: ReportModel) -> Iterator[ShownSuite]:
    checks = [check.name for check in model.checks if check.name in SUITE_CHECK_NAMES]
    found = ((row, row.results[name]) for row in model.rows for name in checks if name in row.results)
    for row, result in found:
        outcome = result.verdict.outcome
        if outcome is None or not outcome.measurements:
            continue
        for suite in SUITES_FORMAT.read(outcome.measurements).suites:
            cases = tuple(suite_cases(suite))
            compared = _compared(result, suite, cases)
            yield ShownSuite(
                suite=suite,
                cell=result.cell_id,
                title=row.cell.name,
                href=f"cells/{row.slug}.html#{anchor_of(result.check)}",
                evidence=outcome.evidence,
                counts=_counts(suite, cases),
                compared=compared,
                groups=tuple(_groups(cases, compared)),
            )


def _compared(result: ReportResult, suite: MeasuredSuite, cases: Sequence[Case]) -> ComparedCases:
    expected = result.verdict.expected
    entries = expected.cases or () if expected else ()
    return compare_cases(cases, [entry for entry in entries if entry.group == suite.name])


def _counts(suite: MeasuredSuite, cases: Sequence[Case]) -> dict[str, int]:
    tests = [test for _, test in suite.ids()]
    return {
        "files": len(suite.files),
        "reused": sum(file.reused for file in suite.files),
        "tests": len(tests),
        "passed": sum(case.passed for case in cases),
        "failed": sum(case.failed for case in cases),
        "skipped": sum(test.ended is Ended.SKIPPED for test in tests),
        "disabled": sum(bool(test.disabled) for test in tests),
        "disabled_passing": sum(bool(test.disabled) and test.ended is Ended.PASSED for test in tests),
    }


def _groups(cases: Sequence[Case], compared: ComparedCases) -> Iterator[ShownGroup]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        if case.failed:
            grouped.setdefault((case.kind, case.message), []).append(case.id)
    new = Counter((case.kind, case.message) for case, _ in compared.new)
    for (kind, message), tests in sorted(grouped.items(), key=lambda item: -len(item[1])):
        yield ShownGroup(
            kind=kind,
            message=message,
            count=len(tests),
            new=new[kind, message],
            tests=tuple(tests[:MOST_TESTS]),
        )
