"""Finds the fewest versions to move so that `inspect` calls a combination fine, and tries them first.

Candidates are the versions that published tables and stacks of the matrix name. Constraints and tables order
them (`harness.matrix.cells.violations`); the best are run through the same checks as the combination itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.matrix.cells.pins import resolve_rules
from harness.matrix.model.cell import Cell
from harness.matrix.model.constraints import ViolationKind
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.settings import Settings
from harness.workspace.inspection.inspection_report import Change, Move
from harness.workspace.inspection.stack_checks import CheckedEntry, check_combinations, combination
from harness.workspace.inspection.version_problems import is_beside

#: Axes of the host, which are not moved.
FIXED = frozenset({"cann", "driver", "soc", "device", "python"})
#: How many candidates are run, and how many packages one may move.
MOST_TRIED, MOST_MOVES = 4, 3
#: How many versions of one package are considered.
MOST_VERSIONS = 16
_VERSION = re.compile(r"[0-9][\w.+!]*")


@dataclass(frozen=True, kw_only=True, order=True)
class _Candidate:
    """moves: how many versions differ. unlisted: tables that list others. steps: how far they move."""

    moves: int
    unlisted: int
    steps: int
    axes: tuple[tuple[str, str], ...]


def find_change(
    settings: Settings,
    matrix: Matrix,
    axes: Mapping[str, str],
    involved: Sequence[str],
    others: Sequence[str],
    is_fine: Callable[[Cell, Sequence[CheckedEntry]], bool],
    *,
    installed: bool,
) -> Change | None:
    """The smallest change that is fine, or None. involved: axes of the failing problems.

    is_fine: the judgement of a combination and its checks by which the present one fails. installed: whether
    the packages are installed; then a release beside a required one is fine.
    """
    movable = [one for one in involved if one not in FIXED]
    candidates = sorted(_candidates(matrix, axes, movable, installed=installed))
    if not candidates:
        return None
    chosen = _spread(candidates)
    cells = [combination(matrix, dict(one.axes), others, "a candidate") for one in chosen]
    checked = check_combinations(settings, cells)
    for one, cell in zip(chosen, cells, strict=True):
        entries = checked.get(cell.id, ())
        is_tried = any(entry.judgement and entry.judgement.status is not Status.ERROR for entry in entries)
        if is_tried and is_fine(cell, entries):
            return _change(matrix, axes, dict(one.axes), entries)
    return None


def _spread(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """The best candidates, at most two of which move the same axes."""
    chosen: list[_Candidate] = []
    counts: dict[int, int] = {}
    for one in candidates:
        counts[one.moves] = counts.get(one.moves, 0) + 1
        if counts[one.moves] <= max(2, MOST_TRIED // MOST_MOVES):
            chosen.append(one)
    return chosen[:MOST_TRIED]


def _candidates(
    matrix: Matrix, axes: Mapping[str, str], movable: Sequence[str], *, installed: bool
) -> Iterator[_Candidate]:
    known = {axis: _known_versions(matrix, axis, axes[axis]) for axis in movable if axis in axes}
    for count in range(1, MOST_MOVES + 1):
        for moved in itertools.combinations(known, count):
            for texts in itertools.product(*(known[axis] for axis in moved)):
                candidate = {**axes, **dict(zip(moved, texts, strict=True))}
                versions = matrix.versions(candidate)
                found = matrix.violations.of(versions, resolve_rules(matrix.override_rules, versions))
                broken = [one for one in found if one.kind is not ViolationKind.UNLISTED and not one.override]
                if not all(
                    installed and is_beside(one.rule, one.kind.value, matrix, candidate) for one in broken
                ):
                    continue
                steps = sum(known[axis].index(text) for axis, text in zip(moved, texts, strict=True))
                yield _Candidate(moves=count, unlisted=len(found), steps=steps, axes=tuple(candidate.items()))


def _known_versions(matrix: Matrix, axis: str, present: str) -> list[str]:
    """The versions of an axis that the matrix names, nearest first, without the present one."""
    parse = matrix.axes[axis].parse
    texts: set[str] = {stack.axes[axis] for stack in matrix.stacks.values() if axis in stack.axes}
    for table in matrix.published.values():
        if axis in table.columns:
            column = table.columns.index(axis)
            texts.update(word for row in table.rows for word in _VERSION.findall(row[column] or ""))
    found = {}
    for text in texts:
        try:
            version = parse(text)
        except ValueError:
            continue
        if not version.ref and ".dev" not in text:
            found[version] = version.nominal
    here = parse(present)
    ordered = sorted({*found, here})
    position = ordered.index(here)
    nearest = sorted(found, key=lambda one: (abs(ordered.index(one) - position), -ordered.index(one)))
    return [found[one] for one in nearest if one != here][:MOST_VERSIONS]


def _change(
    matrix: Matrix, before: Mapping[str, str], after: Mapping[str, str], entries: Sequence[CheckedEntry]
) -> Change:
    moves = tuple(
        Move(package=matrix.axes[axis].package or axis, before=before[axis], after=after[axis])
        for axis in after
        if before.get(axis) != after[axis]
    )
    answered = {Status.PASS, Status.FAIL}  # what fails here is a remark
    judged = [(entry.check, entry.judgement.status in answered) for entry in entries if entry.judgement]
    return Change(
        moves=moves,
        passed=tuple(check for check, is_answered in judged if is_answered),
        open=tuple(check for check, is_answered in judged if not is_answered),
    )
