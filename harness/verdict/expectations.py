"""The list of expected failures: what it covers, what is wrong with it, and edits that touch nothing else."""

from __future__ import annotations

import datetime as dt
import difflib
import io
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from harness.errors import InputError, Location
from harness.matrix.editing.yaml_edit import WIDTH, end_line, find_section, remove_entries
from harness.matrix.model.cell import Cell
from harness.matrix.reading.load_matrix import parse_matrix
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.verdict.verdict import Standing, Verdict

FIELDS = ("cells", "check", "state", "because", "reason", "source", "owner", "until")
SECTION = "expectations"


@dataclass(frozen=True, kw_only=True)
class ExpectationSurvey:
    """One expectation: the cells it covers, and why it is an error to keep it ("" when it is not)."""

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


@dataclass(frozen=True, kw_only=True)
class NewExpectation:
    """An expectation to be written; `cells` is a glob over cell ids and stack names."""

    id: str
    cells: str
    check: str
    state: str
    because: tuple[str, ...] = ()
    reason: str
    source: str
    owner: str
    until: str


@dataclass(frozen=True, kw_only=True)
class ExpectationsEdit:
    """What an update does: ids that go, entries that come."""

    remove: tuple[str, ...] = ()
    add: tuple[NewExpectation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExpectationDetails:
    """What an addition needs to be told by a person."""

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
    found = []
    for name, one in matrix.expectations.items():
        covered = [cell for cell, versions in cells if one.covers(cell, versions)]
        decided = [cell for cell in covered if first.setdefault((cell.id, one.check), name) == name]
        fault = ""
        if one.expired(now):
            fault = f"expired on {one.until_date}: mend the cell, or give a new reason and date"
        elif one.check not in checks:
            fault = f"is about {one.check!r}, which is no check"
        elif not covered:
            fault = "covers no cell: remove it"
        elif not decided:
            other = first[covered[0].id, one.check]
            fault = f"never decides: {other!r} covers its cells before it"
        file = Path(one.where.file)
        shown = Path(os.path.relpath(file, root)) if file.is_absolute() else file
        found.append(
            ExpectationSurvey(
                id=name,
                where=str(Location(shown, one.where.line, one.where.column)),
                check=one.check,
                state=one.state,
                reason=one.reason,
                source=one.source,
                owner=one.owner,
                until=str(one.until_date or one.until_version or ""),
                cells=tuple(cell.id for cell in covered),
                fault=fault,
            )
        )
    return tuple(found)


def plan_expectations_edit(
    matrix: Matrix, cells: Mapping[str, Cell], verdicts: Sequence[Verdict], details: ExpectationDetails | None
) -> ExpectationsEdit:
    """Remove expectations that passed unexpectedly; with `details`, add unexpected failures.

    An expectation that covers several cells and still holds for some of them is replaced by one expectation
    for each of those. With `details`, an expectation whose cell fails in another state is replaced as well.
    Entries without an outcome are never added.
    """
    remove: dict[str, None] = {}
    for verdict in verdicts:
        other = details and verdict.standing is Standing.UNEXPECTED and verdict.status is not Status.BLOCKED
        if (other or verdict.standing is Standing.UNEXPECTED_PASS) and verdict.cell_id in cells:
            one = matrix.expectation_for(cells[verdict.cell_id], verdict.check)
            if one is not None:
                remove[one.id] = None
    taken = set(matrix.expectations) - set(remove)
    add: list[NewExpectation] = []
    for verdict in verdicts:
        cell = cells.get(verdict.cell_id)
        if cell is None:
            continue
        one = matrix.expectation_for(cell, verdict.check)
        if verdict.standing is Standing.KNOWN and one is not None and one.id in remove:
            kept = ExpectationDetails(
                owner=one.owner,
                until=str(one.until_date or one.until_version or ""),
                reason=one.reason,
                source=one.source,
                because=one.because,
            )
            add.append(_entry(cell, verdict, one.state, kept, taken))
        elif details and verdict.standing is Standing.UNEXPECTED and verdict.status is not Status.BLOCKED:
            add.append(_entry(cell, verdict, verdict.state, details, taken))
    return ExpectationsEdit(remove=tuple(remove), add=tuple(add))


def _entry(
    cell: Cell, verdict: Verdict, state: str, details: ExpectationDetails, taken: set[str]
) -> NewExpectation:
    base = (
        re.sub(r"[^a-z0-9]+", "-", f"{cell.stack or cell.id}-{verdict.check}".lower())
        .strip("-")[:56]
        .rstrip("-")
    )
    name = next(
        candidate
        for number in range(1, len(taken) + 2)
        if (candidate := base if number == 1 else f"{base}-{number}") not in taken
    )
    taken.add(name)
    return NewExpectation(
        id=name,
        cells=cell.stack or cell.id,
        check=verdict.check,
        state=state,
        because=details.because,
        reason=details.reason,
        source=details.source,
        owner=details.owner,
        until=details.until,
    )


def apply_edit(text: str, edit: ExpectationsEdit, file: Path | str = "matrix.yaml") -> str:
    """The file with the edit made and every other byte as it was; InputError when that cannot be done.

    What comes out is read again: nothing but the expectations named may differ.
    """
    edited = remove_entries(text, SECTION, edit.remove)
    if edit.add:
        edited = _with(edited, edit.add)
    before, after = parse_matrix(text, file), parse_matrix(edited, file)
    wanted = [name for name in before.expectations if name not in edit.remove] + [one.id for one in edit.add]
    if list(after.expectations) != wanted or _cells(after) != _cells(before):
        raise InputError(
            "the list cannot be edited without touching something else",
            where=Location(file),
            fix="make the edit by hand:\n" + "".join(_lines(one) for one in edit.add),
        )
    return edited


def _cells(matrix: Matrix) -> dict[str, Mapping[str, str]]:
    return {cell.id: cell.axes for cell in matrix.all_cells}


def unified_difference(before: str, after: str, name: str) -> str:
    """A unified diff, to be shown."""
    return "".join(
        difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), name, name)
    )


def _with(text: str, entries: Sequence[NewExpectation]) -> str:
    block = "".join(_lines(one) for one in entries)
    text = text if text.endswith("\n") else f"{text}\n"
    found = find_section(text, SECTION)
    if found is None:
        return f"{text}\nexpectations:\n{block}"
    key, section = found
    lines = text.splitlines(keepends=True)
    if not isinstance(section, yaml.MappingNode) or not section.value:
        lines[key.start_mark.line] = "expectations:\n"
        return "".join([*lines[: key.start_mark.line + 1], block, *lines[key.start_mark.line + 1 :]])
    end = end_line(lines, section.value[-1][1])
    return "".join([*lines[:end], block, *lines[end:]])


def _lines(entry: NewExpectation) -> str:
    from ruamel.yaml import YAML

    writer = YAML()
    writer.width = WIDTH
    out = io.StringIO()
    fields = {name: getattr(entry, name) for name in FIELDS}
    shown = {name: list(value) if name == "because" else value for name, value in fields.items() if value}
    writer.dump({entry.id: shown}, out)
    return "".join(f"  {line}\n" for line in out.getvalue().splitlines())
