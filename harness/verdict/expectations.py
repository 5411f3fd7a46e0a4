"""The expected failures in matrix.yaml: lists the cells they cover and their problems, and edits them."""

from __future__ import annotations

import datetime as dt
import difflib
import itertools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import InputError, Location
from harness.ledger.plan_record import SchemaVersion
from harness.matrix.editing.yaml_edit import append_entries, entry_lines, remove_entries
from harness.matrix.model.cell import Cell
from harness.matrix.model.definitions import Expectation
from harness.matrix.reading.load_matrix import parse_matrix
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.verdict.verdict import Standing, Verdict

SECTION = "expectations"


@dataclass(frozen=True, kw_only=True)
class ExpectationSurvey:
    """One expectation with the cells that it covers. `fault`: why it must be changed or removed, or ""."""

    id: str
    where: str
    check: str
    state: str
    reason: str
    source: str
    owner: str
    until: str
    cells: tuple[str, ...]
    fault: str


EXPECTATIONS_SCHEMA = SchemaVersion(name="npu-matrix.expectations", version=1)


@dataclass(frozen=True, kw_only=True)
class ExpectationList:
    """What `npu-matrix expect list --json` prints."""

    schema: SchemaVersion = EXPECTATIONS_SCHEMA
    expectations: tuple[ExpectationSurvey, ...]


@dataclass(frozen=True, kw_only=True)
class NewExpectation:
    """An expectation to be written. `cells` is a glob pattern for cell ids and stack names."""

    id: str
    cells: str
    check: str
    state: str
    details: ExpectationDetails


@dataclass(frozen=True, kw_only=True)
class ExpectationsEdit:
    """An edit of the list of expectations: the ids to remove, and the entries to add."""

    remove: tuple[str, ...] = ()
    add: tuple[NewExpectation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExpectationDetails:
    """The fields of an expectation that a person has to provide."""

    owner: str
    until: str
    reason: str
    source: str
    because: tuple[str, ...] = ()


def survey_expectations(
    matrix: Matrix, checks: Collection[str], root: Path, today: dt.date | None = None
) -> tuple[ExpectationSurvey, ...]:
    """Every expectation of the matrix, in its order."""
    now = today or dt.datetime.now(tz=dt.UTC).date()
    cells = [(cell, matrix.versions(cell.axes)) for cell in matrix.all_cells]
    first: dict[tuple[str, str], str] = {}
    surveys = []
    for name, expectation in matrix.expectations.items():
        covered = [cell for cell, versions in cells if expectation.covers(cell, versions)]
        decided = [cell for cell in covered if first.setdefault((cell.id, expectation.check), name) == name]
        fault = ""
        if expectation.expired(now):
            fault = f"expired on {expectation.until_date}: repair the cell, or set a new reason and date"
        elif expectation.check not in checks:
            fault = f"is about {expectation.check!r}, which is not a check"
        elif not covered:
            fault = "covers no cell: remove it"
        elif not decided:
            other = first[covered[0].id, expectation.check]
            fault = f"has no effect: {other!r} comes first and covers the same cells"
        where = expectation.where
        file = Path(where.file)
        shown = Path(os.path.relpath(file, root)) if file.is_absolute() else file
        surveys.append(
            ExpectationSurvey(
                id=name,
                where=str(Location(shown, where.line, where.column)),
                check=expectation.check,
                state=expectation.state,
                reason=expectation.reason,
                source=expectation.source,
                owner=expectation.owner,
                until=_until(expectation),
                cells=tuple(cell.id for cell in covered),
                fault=fault,
            )
        )
    return tuple(surveys)


def _until(expectation: Expectation) -> str:
    return str(expectation.until_date or expectation.until_version or "")


def plan_expectations_edit(
    matrix: Matrix, cells: Mapping[str, Cell], verdicts: Sequence[Verdict], details: ExpectationDetails | None
) -> ExpectationsEdit:
    """Remove expectations that passed unexpectedly; with `details`, add unexpected failures.

    If an expectation covers several cells and only some of them pass, it is replaced by one expectation for
    each cell that still fails. With `details`, an expectation whose cell fails in another state is replaced
    as well. Entries without an outcome are never added.
    """
    remove: dict[str, None] = {}
    for verdict in verdicts:
        replaced = details is not None and _is_new_failure(verdict)
        if (replaced or verdict.standing is Standing.UNEXPECTED_PASS) and verdict.cell_id in cells:
            expectation = matrix.expectation_for(cells[verdict.cell_id], verdict.check)
            if expectation is not None:
                remove[expectation.id] = None
    ids = set(matrix.expectations) - set(remove)
    add: list[NewExpectation] = []
    for verdict in verdicts:
        cell = cells.get(verdict.cell_id)
        if cell is None:
            continue
        expectation = matrix.expectation_for(cell, verdict.check)
        if verdict.standing is Standing.KNOWN and expectation is not None and expectation.id in remove:
            same_details = ExpectationDetails(
                owner=expectation.owner,
                until=_until(expectation),
                reason=expectation.reason,
                source=expectation.source,
                because=expectation.because,
            )
            add.append(_new_expectation(cell, verdict, expectation.state, same_details, ids))
        elif details is not None and _is_new_failure(verdict):
            add.append(_new_expectation(cell, verdict, verdict.state, details, ids))
    return ExpectationsEdit(remove=tuple(remove), add=tuple(add))


def _is_new_failure(verdict: Verdict) -> bool:
    return verdict.standing is Standing.UNEXPECTED and verdict.status is not Status.BLOCKED


def _new_expectation(
    cell: Cell, verdict: Verdict, state: str, details: ExpectationDetails, ids: set[str]
) -> NewExpectation:
    """An expectation for one cell, with an id that is not in `ids`, to which it is added."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{cell.stack or cell.id}-{verdict.check}".lower()).strip("-")
    base = name[:56].rstrip("-")
    numbered = (f"{base}-{number}" for number in itertools.count(2))
    unique = next(candidate for candidate in itertools.chain([base], numbered) if candidate not in ids)
    ids.add(unique)
    return NewExpectation(
        id=unique, cells=cell.stack or cell.id, check=verdict.check, state=state, details=details
    )


def apply_edit(text: str, edit: ExpectationsEdit, file: Path | str = "matrix.yaml") -> str:
    """The text of the file with the edit. All other bytes stay the same.

    The result is parsed again. InputError if anything else than these expectations has changed.
    """
    edited = remove_entries(text, SECTION, edit.remove)
    if edit.add:
        edited = append_entries(edited, SECTION, "".join(map(_lines, edit.add)))
    before, after = parse_matrix(text, file), parse_matrix(edited, file)
    ids = [name for name in before.expectations if name not in edit.remove] + [new.id for new in edit.add]
    if list(after.expectations) != ids or _axes_by_cell(after) != _axes_by_cell(before):
        raise InputError(
            "the expectations cannot be edited without changing something else",
            where=Location(file),
            fix="make the edit by hand:\n" + "".join(_lines(new) for new in edit.add),
        )
    return edited


def _axes_by_cell(matrix: Matrix) -> dict[str, Mapping[str, str]]:
    return {cell.id: cell.axes for cell in matrix.all_cells}


def unified_difference(before: str, after: str, name: str) -> str:
    """The unified diff of two texts."""
    return "".join(
        difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), name, name)
    )


def _lines(entry: NewExpectation) -> str:
    return entry_lines(
        entry.id,
        {
            "cells": entry.cells,
            "check": entry.check,
            "state": entry.state,
            "because": list(entry.details.because),
            "reason": entry.details.reason,
            "source": entry.details.source,
            "owner": entry.details.owner,
            "until": entry.details.until,
        },
    )
