"""Migrations that follow a branch: their stacks at the current commit of the branch."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from harness.errors import HarnessError, Location
from harness.matrix.model.migration import Migration
from harness.matrix.version_matrix import Matrix
from harness.sources.git.mirrors import branch_head


def follow_branches(matrix: Matrix) -> tuple[Matrix, tuple[str, ...]]:
    """The matrix with migrations at the current commits of the branches they follow, and notices to print.

    If a branch cannot be read, the stack of its migration is left out, with a notice.
    """
    today = dt.datetime.now(tz=dt.UTC).date()
    notices = [
        f"{_place(one.where)}: migration {one.name!r} was due on {one.until}: "
        f"`npu-matrix matrix migrations` shows what blocks it"
        for one in matrix.migrations.values()
        if one.overdue(today)
    ]
    commits: dict[str, dict[str, str]] = {}
    for one in matrix.migrations.values():
        commits[one.name], missing = _heads(matrix, one)
        notices += [f"{_place(one.where)}: the stack {one.name!r} is not planned: {what}" for what in missing]
    return matrix.with_migrations(commits), tuple(notices)


def _heads(matrix: Matrix, migration: Migration) -> tuple[dict[str, str], list[str]]:
    """Axis -> current commit of the branch, and the problems with branches that could not be read."""
    found: dict[str, str] = {}
    try:
        for axis, ref in migration.follows.items():
            found[axis] = branch_head(matrix.axes[axis].repository, ref)
    except HarnessError as error:
        return found, [f"{problem.where}: {problem.what}" for problem in error.problems]
    return found, []


def _place(where: Location) -> str:
    return f"{Path(where.file).name}:{where.line}"
