"""The table of stacks in the documentation says of each stack what matrix.yaml and triage say today."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import InputError
from harness.ledger.store import Ledger
from harness.matrix.model.cell import Cell
from harness.settings import load_settings
from harness.workspace.open_ledger import open_ledger
from harness.workspace.planning.open_plan import open_matrix
from harness.workspace.results.row_table import (
    SIMULATED,
    TRIAGE,
    Row,
    _differences,
    read_rows,
    row_lines,
    rows_document,
    rows_of,
)

ROOT = Path(__file__).parents[3]
STORED = rows_of(json.loads((ROOT / "docs/rows.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def now(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Row, ...], dict[str, Cell]]:
    """The rows without any outcome, and every cell by its id."""
    checkout = tmp_path_factory.mktemp("checkout")
    shutil.copy(ROOT / "matrix.yaml", checkout)
    shutil.copytree(ROOT / "patches", checkout / "patches")
    settings = load_settings({"cache": str(checkout / "cache")}, {}, checkout)
    matrix = open_matrix(settings)
    cells = {cell.id: cell for cell in matrix.all_cells}
    cells |= {cell.id: cell for cell in map(matrix.stack_cell, matrix.stacks)}
    ledger: Ledger
    with open_ledger(settings) as ledger:
        return read_rows(settings, ledger), cells


def outdated(stored: tuple[Row, ...], today: tuple[Row, ...], cells: dict[str, Cell]) -> Iterator[str]:
    """What of the stored table is no longer so, apart from outcomes."""
    rows = {row.stack: row for row in today}
    if set(rows) != {row.stack for row in stored}:
        yield f"stacks: {sorted(set(rows) ^ {row.stack for row in stored})}"
    for row in (row for row in stored if row.stack in rows):
        new = rows[row.stack]
        if replace(row, squares=()) != replace(new, squares=()):
            yield f"{row.stack}: title, render, failures or what the twin leaves out"
        own = {square.column: square for square in new.squares}
        for square in row.squares:
            if square.column == TRIAGE:
                if square != own[TRIAGE]:
                    yield f"{row.stack}: triage"
                continue
            if square.column not in SIMULATED and square.cell != own[square.column].cell:
                yield f"{row.stack}: {square.column} is of {square.cell}, which is not its cell"
            elif square.cell not in cells:
                yield f"{row.stack}: {square.column} is of {square.cell}, which is no cell"
            elif cells[square.cell].stack != row.stack and list(square.differs) != _differences(
                cells[square.cell], cells[own["patches"].cell]
            ):
                yield f"{row.stack}: versions in which the cell of {square.column} differs"


def test_the_table_is_current(now):
    assert list(outdated(STORED, *now)) == [], "npu-matrix matrix rows --json > docs/rows.json"


def test_versions_of_a_row_that_change_make_it_outdated(now):
    first = STORED[0]
    other = replace(first.squares[0], cell="gptoss-20b-grpo-000000000000")
    changed = replace(first, squares=(other, *first.squares[1:]))
    assert list(outdated((changed, *STORED[1:]), *now)) == [
        "gptoss-20b-grpo: patches is of gptoss-20b-grpo-000000000000, which is not its cell"
    ]
    hidden = [replace(one, differs=()) if one.differs else one for one in first.squares]
    assert any(
        "versions in which" in text
        for text in outdated((replace(first, squares=tuple(hidden)), *STORED[1:]), *now)
    )
    assert list(outdated(STORED[1:], *now)) == ["stacks: ['gptoss-20b-grpo']"]
    assert list(outdated((replace(first, left_out=()), *STORED[1:]), *now))


def test_no_square_is_green_without_evidence_a_date_and_a_command():
    for row in STORED:
        for square in row.squares:
            if square.result == "pass" and square.column != TRIAGE:
                assert set(square.checks.values()) == {"pass"}
                assert square.evidence, (row.stack, square.column)
                assert square.date, (row.stack, square.column)
                assert square.command, (row.stack, square.column)


def test_every_failure_that_users_see_is_explained():
    failures = [failure for row in STORED for failure in row.failures]
    assert len(failures) > 25
    assert [failure.log for failure in failures if not failure.agrees] == []


def test_a_wrong_cause_is_shown():
    row = next(row for row in STORED if row.failures)
    wrong = replace(row.failures[0], found="npu-oom")
    assert any("is not what triage says of" in line for line in row_lines([replace(row, failures=(wrong,))]))


def test_tables_of_two_revisions_are_not_joined_without_notice():
    first, second = STORED[0], STORED[1]
    table = rows_document([first], "aaaa")
    assert rows_of(table) == (first,)
    joined = {**table, "rows": [*table["rows"], *rows_document([second], "bbbb")["rows"]]}
    with pytest.raises(InputError, match="joined from several tables"):
        rows_of(joined)


def test_the_revisions_that_measured_the_squares_are_listed():
    one, two = (
        replace(square, evidence="static", date="2026-11-28", revisions=revisions)
        for square, revisions in zip(STORED[0].squares, [("aaaa",), ("aaaa", "bbbb+")], strict=False)
    )
    lines = "\n".join(row_lines([replace(STORED[0], squares=(one, two))]))
    assert "Measured with 2 revisions of this project: aaaa (2 squares), bbbb+ (1 squares)." in lines
    assert "(static, 2026-11-28, revision aaaa and bbbb+)" in lines
    lines = "\n".join(row_lines([replace(STORED[0], squares=(one,))]))
    assert "Measured with revision aaaa (1 squares) of this project." in lines
    assert "revision unknown" in "\n".join(
        row_lines([replace(STORED[0], squares=(replace(one, revisions=()),))])
    )


def test_another_document_is_refused():
    with pytest.raises(InputError, match="no table of rows"):
        rows_of({"rows": [{"stack": "a"}]})
