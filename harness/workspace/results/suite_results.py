"""The stored outcomes of upstreams' tests of a run, and updates of the files with known failures."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.atomic_write import replace_bytes
from harness.outcome import Case
from harness.settings import Settings
from harness.upstream_tests.suite_check import SUITE_CHECK_NAMES
from harness.upstream_tests.suite_judge import suite_cases
from harness.upstream_tests.suite_measurements import SUITES_FORMAT, MeasuredSuite
from harness.verdict.suite_known_failures import (
    FOLDER,
    KnownFailures,
    KnownFailuresDetails,
    file_axes,
    file_name,
    read_known_failures,
    to_text,
    updated,
)
from harness.workspace.results.stored_run import StoredRun


@dataclass(frozen=True, kw_only=True)
class SuiteOfCell:
    """A suite that ran in a cell. axes: of the cell. run_id: of the run that executed it."""

    cell: str
    axes: Mapping[str, str]
    check: str
    suite: MeasuredSuite
    finished: float
    run_id: str

    @property
    def cases(self) -> tuple[Case, ...]:
        """Each test as a case."""
        return tuple(suite_cases(self.suite))


def suites_of_run(stored: StoredRun) -> Iterator[SuiteOfCell]:
    """Every suite that has an outcome in the run, also those that were not run."""
    axes = {cell.id: cell.axes for cell in stored.plan.cells}
    for verdict in stored.verdicts:
        outcome = verdict.outcome
        if verdict.check not in SUITE_CHECK_NAMES or outcome is None or not outcome.measurements:
            continue
        for suite in SUITES_FORMAT.read(outcome.measurements).suites:
            yield SuiteOfCell(
                cell=verdict.cell_id,
                axes=axes[verdict.cell_id],
                check=verdict.check,
                suite=suite,
                finished=outcome.finished,
                run_id=outcome.run_id,
            )


@dataclass(frozen=True, kw_only=True)
class FileEdit:
    """A file with known failures before and after: both are texts, "" if there is none."""

    path: Path
    before: str
    after: str


def plan_known_failures(
    settings: Settings,
    suites: Sequence[SuiteOfCell],
    details: KnownFailuresDetails | None,
    today: dt.date,
) -> list[FileEdit]:
    """The edits of the files with known failures after these outcomes.

    Entries of tests that pass now are removed; with `details`, failures that are not listed are added.
    """
    folder = settings.path("matrix").parent / FOLDER
    files = read_known_failures(folder)
    edits = []
    for one in suites:
        if one.suite.not_run:
            continue
        found = next((file for file in files if file.suite == one.suite.name and file.covers(one.axes)), None)
        if found is None and details is None:
            continue
        axes = file_axes(one.axes)
        file = found or _empty(one.suite.name, axes, details, today)
        path = folder / one.suite.name / (Path(file.file).name or file_name(axes))
        after = updated(file, one.cases, details, reasons=_upstream_reasons(one.suite))
        if not after.tests and found is None:
            continue
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        text = to_text(after) if after.tests else ""
        if text != before:
            edits.append(FileEdit(path=path, before=before, after=text))
    return edits


def _empty(
    suite: str, axes: Mapping[str, str], details: KnownFailuresDetails | None, today: dt.date
) -> KnownFailures:
    return KnownFailures(
        file="",
        suite=suite,
        axes=axes,
        until=details.until if details else today,
        owner=details.owner if details else "",
        source=details.source if details else "",
        tests=(),
    )


def _upstream_reasons(suite: MeasuredSuite) -> dict[str, str]:
    """Test id -> what the upstream's own list of disabled tests says of it."""
    return {
        name: f"on the upstream's list of disabled tests: {test.disabled}"
        for name, test in suite.ids()
        if test.disabled
    }


def write_edits(edits: Sequence[FileEdit]) -> None:
    """Write the files; one without entries is removed."""
    for edit in edits:
        if edit.after:
            edit.path.parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(edit.path, edit.after.encode(), mode=0o644)
        else:
            edit.path.unlink(missing_ok=True)
