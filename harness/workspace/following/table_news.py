"""What is new of the published tables that name their source, and the edit of matrix.yaml that adds it."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, InputError, Location, Problem
from harness.matrix.editing.add_published import AddedRows, MatrixAdditions, with_additions
from harness.matrix.model.constraints import PublishedTable
from harness.matrix.version_matrix import Matrix
from harness.settings import Settings
from harness.sources.git.absent_objects import fetching_git
from harness.sources.git.fetched_mirror import Upstream
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_clone, mirror_folders, own_mirror_folders
from harness.sources.packages.index_lookup import PackageIndex
from harness.sources.packages.index_settings import index_environment
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.downloads import run_quietly
from harness.workspace.following.additions import NewMigration, NewStack, additions
from harness.workspace.following.followed_documents import document_news
from harness.workspace.following.followed_releases import release_news
from harness.workspace.following.new_rows import TableNews, key_version
from harness.workspace.planning.upstream_mirrors import update_mirrors


@dataclass(frozen=True, kw_only=True)
class MatrixNews:
    """What is new. before, after: the text of the file; equal if nothing is new."""

    tables: tuple[TableNews, ...]
    stacks: tuple[NewStack, ...]
    migrations: tuple[NewMigration, ...]
    before: str
    after: str

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What could not be read or was not understood."""
        return tuple(problem for one in self.tables for problem in one.problems)


def followed_tables(matrix: Matrix, names: Sequence[str] = ()) -> tuple[PublishedTable, ...]:
    """The tables that name where their rows come from; InputError for a name that is not one of them."""
    tables = {name: table for name, table in matrix.published.items() if table.follow}
    unknown = [name for name in names if name not in tables]
    if unknown:
        raise InputError(
            f"no published table {unknown[0]!r} names where its rows come from",
            where=Location(matrix.file),
            fix=f"followed are {', '.join(tables) or 'none'}; `follow` in an entry of `published` adds one",
        )
    return tuple(table for name, table in tables.items() if not names or name in names)


def read_news(settings: Settings, matrix: Matrix, tables: Sequence[PublishedTable]) -> tuple[TableNews, ...]:
    """What the sources of these tables have that the tables lack. What cannot be read is a problem."""
    return tuple(_news(settings, matrix, table) for table in tables)


def _news(settings: Settings, matrix: Matrix, table: PublishedTable) -> TableNews:
    assert table.follow is not None
    axis = matrix.axes[table.follow.axis]
    try:
        if not table.follow.document:
            index = index_environment(os.environ)
            releases = ReleaseFetcher(cache=settings.cache, command=run_quietly)
            return release_news(
                table, matrix.axes, PackageIndex(settings=index, command=run_quietly), releases
            )
        clone, notes = _clone(settings, axis.addresses)
        found = document_news(table, matrix.axes, clone)
        return TableNews(**{**vars(found), "notes": (*notes, *found.notes)})
    except HarnessError as error:
        return TableNews(table=table, problems=tuple(error.problems))


def _clone(settings: Settings, addresses: tuple[str, ...]) -> tuple[Repository, tuple[str, ...]]:
    """The user's own clone, or the mirror of the cache, which is updated first if fetching is permitted."""
    own = find_clone(own_mirror_folders(), addresses[0])
    if own is not None:
        return own, ()
    notes: tuple[str, ...] = ()
    if settings.fetch:
        (update,) = update_mirrors(settings, [Upstream(addresses=addresses)], fetching_git(os.environ))
        if not update.address:
            why = "; ".join(f"{address}: {reason}" for address, reason in update.failures.items())
            notes = (f"the mirror was not updated, so its last state is read: {why}",) if why else ()
    found = find_clone(mirror_folders(), addresses[0])
    if found is None:
        raise InputError(
            f"no clone of {addresses[0]} can be read",
            why=notes[0] if notes else "fetching is switched off",
            fix="set the setting `mirrors` to a folder with a clone, or permit fetching",
        )
    return found, notes


def matrix_news(
    matrix: Matrix, text: str, tables: Sequence[TableNews], file: Path, today: dt.date
) -> MatrixNews:
    """The edit of the file `file` with this text that adds what is new.

    Rows of a table in an included file are not added there, but lead to stacks and migrations here.
    """
    stacks, migrations = additions(matrix, tables, today)
    own = [one for one in tables if Path(str(one.table.where.file)) == file]
    added = MatrixAdditions(
        tables=tuple(
            AddedRows(
                table=one.table,
                rows=tuple(row.fields for row in one.rows),
                revision=one.revision,
                date=max(one.table.date, one.date, *(row.date for row in one.rows)),
            )
            for one in own
            if one.rows
        ),
        stacks={stack.name: _stack_fields(stack) for stack in stacks},
        migrations={migration.name: _migration_fields(migration) for migration in migrations},
    )

    def order(axis: str, word: str) -> Any:
        version = key_version(matrix.axes[axis], word)
        return version.order if version else None

    after = with_additions(text, added, order, file)
    return MatrixNews(tables=tuple(tables), stacks=stacks, migrations=migrations, before=text, after=after)


def _stack_fields(stack: NewStack) -> Mapping[str, Any]:
    return {
        "title": stack.title,
        "source": stack.source,
        "recipe": stack.recipe,
        "axes": dict(stack.axes),
        "notes": list(stack.notes),
    }


def _migration_fields(migration: NewMigration) -> Mapping[str, Any]:
    return {
        name: dict(value) if name == "to" else value
        for name, value in vars(migration).items()
        if name != "name"
    }
