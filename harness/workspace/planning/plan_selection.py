"""The cells and checks that a command selects, and the errors for names that match nothing."""

from __future__ import annotations

import difflib
import fnmatch
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.builds.checks import as_found
from harness.check import Check
from harness.errors import InputError, Location, NothingSelectedError
from harness.matrix.model.cell import Cell
from harness.matrix.version_matrix import Matrix
from harness.plan.feasibility.exclusion import explain_empty_selection
from harness.plan.tasks.check_registry import all_checks, with_needed_checks
from harness.settings import Settings


def unknown_name(what: str, wanted: str, known: list[str]) -> InputError:
    """The error for a name without a match; it suggests the nearest known names."""
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4)
    if near:
        fix = f"nearest: {', '.join(near)}"
    elif what in {"cell", "check"}:
        fix = f"`npu-matrix plan` lists the {what}s"
    else:
        fix = f"one of: {', '.join(known) or 'none'}"
    return InputError(f"no {what} matches {wanted!r}", fix=fix)


def select_cells(
    settings: Settings,
    matrix: Matrix,
    only: Sequence[str] = (),
    choose: Callable[[Matrix], Sequence[Cell]] | None = None,
) -> list[Cell]:
    """The cells of the profile, or of `choose`, that match a glob; NothingSelectedError if there are none.

    A glob that matches no cell of the profile selects among all cells of the matrix, such as stacks that no
    profile selects.
    """
    offered = choose(matrix) if choose else matrix.cells(settings["profile"]).cells
    globs = split_names(only)
    cells = [cell for cell in offered if not globs or is_selected(cell, globs)]
    if choose is None and (rest := unmatched(globs, offered)):
        cells += [cell for cell in matrix.all_cells if cell not in offered and is_selected(cell, rest)]
        offered = matrix.all_cells
    if not cells:
        raise _nothing_selected(matrix, settings["profile"], globs, offered)
    return cells


def unmatched(globs: Sequence[str], cells: Sequence[Cell]) -> list[str]:
    """The globs that match none of these cells."""
    return [glob for glob in globs if not any(is_selected(cell, [glob]) for cell in cells)]


def select_checks(names: Sequence[str] = (), *, as_they_are: bool = False) -> tuple[Check, ...]:
    """The named checks with their dependencies, or all; InputError for an unknown name.

    as_they_are: whether environments are used as they were found, and depend on nothing.
    """
    registered = all_checks()
    if as_they_are:
        registered = tuple(as_found(check) for check in registered)
    known = {check.name for check in registered}
    names = split_names(names)
    for name in names:
        if name not in known:
            raise unknown_name("check", name, sorted(known))
    return with_needed_checks(set(names), registered) if names else registered


def selection_options(only: Sequence[str], checks: Sequence[str]) -> str:
    """The command-line options of a selection; "" if nothing was selected."""
    named = (("--only", split_names(only)), ("--check", split_names(checks)))
    return shlex.join([word for option, names in named for name in names for word in (option, name)])


def checks_left_out(settings: Settings, matrix: Matrix) -> dict[str, str]:
    """Check -> why the profile leaves it out; InputError if the profile names an unknown check."""
    profile = matrix.profiles.get(settings["profile"])
    if profile is None or not profile.without:
        return {}
    known = sorted(check.name for check in all_checks())
    for one in profile.without:
        if one.check not in known:
            near = unknown_name("check", one.check, known).problems[0]
            raise InputError(near.what, where=one.where, fix=near.fix)
    return {one.check: f"not in profile {profile.name}: {one.reason}" for one in profile.without}


def _nothing_selected(
    matrix: Matrix, profile: str, only: Sequence[str], offered: Sequence[Cell]
) -> NothingSelectedError:
    """The error for an empty selection: a glob has no match, or rules exclude every cell."""
    if only:
        near = unknown_name("cell", only[0], _names(offered)).problems[0]
        return NothingSelectedError(near.what, fix=near.fix)
    rules = [
        rule for part in matrix.profiles[profile].select for rule in explain_empty_selection(matrix, part)
    ]
    why = "; ".join(
        f"{relative_location(rule.where, Path(matrix.file).parent)} {rule.rule}: {rule.reason}"
        for rule in rules
    )
    return NothingSelectedError(
        f"the profile {profile!r} selects no cell",
        why=f"these rules together exclude every combination: {why}" if why else "",
        fix="relax one of these rules, or change the values of the profile"
        if why
        else "add a selection to it",
    )


def find_cell(matrix: Matrix, profile: str, name: str) -> Cell:
    """The cell with this id, stack name, or beginning of its id; InputError if there is none or several.

    Cells of the profile are searched first, then all cells.
    """
    for cells in (matrix.cells(profile).cells, matrix.all_cells):
        exact = [cell for cell in cells if name in {cell.id, cell.stack}]
        matches = exact or [cell for cell in cells if cell.id.startswith(name)]
        if matches:
            break
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise unknown_name("cell", name, _names(matrix.all_cells))
    raise InputError(
        f"{len(matches)} cells begin with {name!r}",
        fix=f"one of: {', '.join(cell.id for cell in matches)}",
    )


def find_cells(matrix: Matrix, profile: str, name: str) -> tuple[Cell, ...]:
    """The cells whose id or stack matches the glob `name`, else the one cell of this name (see `find_cell`).

    Cells of the profile are searched first, then all cells.
    """
    if not any(letter in name for letter in "*?["):
        return (find_cell(matrix, profile, name),)
    for cells in (matrix.cells(profile).cells, matrix.all_cells):
        if found := tuple(cell for cell in cells if is_selected(cell, [name])):
            return found
    raise NothingSelectedError(f"no cell and no stack matches {name!r}", fix="npu-matrix plan --profile full")


def relative_location(where: Location, root: Path) -> str:
    """A location with its file relative to the checkout."""
    file = Path(where.file)
    named = file.relative_to(root) if file.is_relative_to(root) else file
    return str(Location(named, where.line, where.column))


def split_names(words: Sequence[str]) -> list[str]:
    """The names, split at commas. Empty text is an error, so that an empty shell variable does not select
    all."""
    parts = [part for word in words for part in word.split(",") if part]
    if words and not parts:
        raise NothingSelectedError("--only or --check is empty", fix="give a name, or leave the option out")
    return parts


def is_selected(cell: Cell, globs: Sequence[str]) -> bool:
    """Whether a glob matches the id of the cell or the name of its stack."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs for name in _names([cell]))


def _names(cells: Sequence[Cell]) -> list[str]:
    return [word for cell in cells for word in (cell.id, cell.stack) if word]
