"""Migrations: both stacks are planned, invalid entries are rejected, and finishing edits the file."""

from __future__ import annotations

import datetime as dt

import pytest

from harness.errors import InputError
from harness.matrix.editing.retire_migration import retire_migration
from harness.matrix.reading.load_matrix import parse_matrix
from harness.matrix.reading.unused_entries import find_unused_entries

TEXT = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, repository: "https://example.org/a/verl", source: made up}
  torch: {title: torch, scheme: pep440, package: torch, source: made up}
stacks:
  steady:
    title: a row
    source: made up
    axes:
      verl: 0.9.0  # what the guide says
      # torch stays
    findings: [{what: a known thing, source: made up}]
  other:
    title: another
    source: made up
    axes: {verl: 0.8.0}
profiles:
  default: {title: all, select: [{stacks: [steady]}]}
expectations:
  known:
    cells: moving
    check: lint
    state: fail
    reason: made up
    source: made up
    owner: me
    until: 2099-01-01
migrations:
  # why we move
  moving:
    stack: steady
    title: the next one
    to: {verl: 0.9.1, torch: 2.7.1}
    reason: newer
    source: made up
    owner: me
    until: 2099-01-01
"""


def test_both_rows_are_planned_wherever_the_old_one_is():
    cells = {cell.stack: cell for cell in parse_matrix(TEXT).cells("default")}
    assert list(cells) == ["steady", "moving"]
    assert cells["steady"].axes == {"verl": "0.9.0"}
    assert cells["moving"].axes == {"verl": "0.9.1", "torch": "2.7.1"}
    assert str(cells["moving"].provenance["verl"]).startswith("matrix.yaml:33:")
    assert cells["moving"].findings == ()


def test_a_new_row_can_be_selected_without_the_old_one():
    matrix = parse_matrix(TEXT.replace("stacks: [steady]", "stacks: [moving]"))
    assert [cell.stack for cell in matrix.cells("default")] == ["moving"]
    unused = [one.what for one in find_unused_entries(matrix)]
    assert "stack 'steady' is in no profile" in unused
    assert not any("'moving'" in one for one in unused)


def test_the_old_row_keeps_its_identity():
    without = TEXT[: TEXT.index("expectations:")]
    assert parse_matrix(without).stack_cell("steady").id == parse_matrix(TEXT).stack_cell("steady").id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("stack: steady", "stack: steddy"), "matrix.yaml:31:12: unknown stack 'steddy'"),
        (("to: {verl: 0.9.1", "to: {varl: 0.9.1"), "unknown axis 'varl'"),
        (("torch: 2.7.1}", "torch: next}"), "'next' is not a version"),
        (("to: {verl: 0.9.1, torch: 2.7.1}", "to: {verl: 0.9.0}"), "already has these versions"),
        (("until: 2099-01-01\n", "until: soon\n"), "'soon' is not a date"),
        (("  moving:\n    stack", "  other:\n    stack"), "there is already a stack 'other'"),
        (("torch: 2.7.1}", "torch: 2.7.1@main}"), "has no repository"),
        (("0.9.0  #", "0.9.0@main  #"), "'main' is a moving branch"),
    ],
)
def test_what_is_refused(change: tuple[str, str], said: str):
    source = (
        TEXT.replace("    until: 2099-01-01\nmigrations", "    until: 2098-01-01\nmigrations")
        if "until" in change[0]
        else TEXT
    )
    with pytest.raises(InputError) as caught:
        parse_matrix(source.replace(*change))
    assert said in "\n".join(str(problem) for problem in caught.value.problems)


def test_a_row_that_follows_a_branch_is_there_once_its_commit_is_known():
    matrix = parse_matrix(TEXT.replace("verl: 0.9.1,", "verl: 0.10.0.dev0@main,"))
    assert [cell.stack for cell in matrix.cells("default")] == ["steady"]
    assert matrix.migrations["moving"].follows == {"verl": "main"}
    moved = matrix.with_migrations({"moving": {"verl": "1" * 40}})
    assert moved.stack_cell("moving").axes["verl"] == f"0.10.0.dev0@{'1' * 40}"
    assert (
        moved.with_migrations({"moving": {"verl": "2" * 40}})
        .stack_cell("moving")
        .axes["verl"]
        .endswith("2" * 40)
    )


def test_a_date_that_has_passed():
    moving = parse_matrix(TEXT).migrations["moving"]
    assert not moving.overdue(dt.date(2099, 1, 1))
    assert moving.overdue(dt.date(2099, 1, 2))


def test_the_end_gives_the_old_row_the_new_values_and_keeps_every_other_byte():
    matrix = parse_matrix(TEXT)
    after = retire_migration(TEXT, matrix.migrations["moving"], matrix.stacks["moving"].axes, "matrix.yaml")
    head, _, _ = TEXT.partition("migrations:")
    expected = head.replace("verl: 0.9.0  # what", "verl: 0.9.1  # what").replace(
        "      # torch stays\n", "      torch: 2.7.1\n      # torch stays\n"
    )
    expected = expected.replace("cells: moving", "cells: steady")
    assert after.startswith(expected)
    assert parse_matrix(after).migrations == {}
    assert parse_matrix(after).stacks["steady"].axes == {"verl": "0.9.1", "torch": "2.7.1"}


def test_a_row_in_one_line_is_left_to_people():
    text = TEXT.replace("stack: steady", "stack: other")
    matrix = parse_matrix(text)
    with pytest.raises(InputError, match="without changing something else") as caught:
        retire_migration(text, matrix.migrations["moving"], matrix.stacks["moving"].axes, "matrix.yaml")
    assert "verl: 0.9.1, torch: 2.7.1" in str(caught.value.problems[0])
