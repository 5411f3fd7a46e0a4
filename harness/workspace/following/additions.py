"""Stacks and migrations for new rows of published tables.

A stack has only what its row lists; soc, device and recipe are those of the newest stack of the same axis,
and everything that could not be taken over is a note. Release candidates lead to no stack and no migration.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import Location
from harness.matrix.model.constraints import PublishedTable, plain_version, published_specifiers
from harness.matrix.model.definitions import Axis, Stack
from harness.matrix.model.versions import Scheme, Version
from harness.matrix.version_matrix import Matrix
from harness.workspace.following.new_rows import NewRow, TableNews, key_version

#: How long a migration may take: as long as a quarter has days at most.
DAYS_TO_MIGRATE = 92


@dataclass(frozen=True, kw_only=True)
class NewStack:
    """A stack to add. notes: what the row says that no axis could get."""

    name: str
    title: str
    source: str
    recipe: str
    axes: Mapping[str, str]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NewMigration:
    """A migration to add; its fields are those of an entry of `migrations`."""

    name: str
    stack: str
    title: str
    to: Mapping[str, str]
    reason: str
    source: str
    owner: str
    until: str


def additions(
    matrix: Matrix, news: Sequence[TableNews], today: dt.date
) -> tuple[tuple[NewStack, ...], tuple[NewMigration, ...]]:
    """The stacks and migrations for these rows; what the matrix has already is not added again."""
    stacks: dict[str, NewStack] = {}
    for table, row in _rows_that_add(news, "stack"):
        if stack := _new_stack(matrix, table, row):
            stacks.setdefault(stack.name, stack)
    matrix = replace(
        matrix, stacks={**matrix.stacks, **{one.name: _planned(one, matrix) for one in stacks.values()}}
    )
    migrations: dict[str, NewMigration] = {}
    for axis, rows in _by_axis(_rows_that_add(news, "migration")).items():
        migration = _new_migration(matrix, axis, rows, today)
        if migration:
            migrations.setdefault(migration.name, migration)
    return tuple(stacks.values()), tuple(migrations.values())


def _planned(stack: NewStack, matrix: Matrix) -> Stack:
    """The stack as the matrix has it afterwards."""
    return Stack(
        name=stack.name,
        title=stack.title,
        source=stack.source,
        axes=stack.axes,
        recipe=stack.recipe,
        findings=(),
        notes=stack.notes,
        provenance={},
        where=Location(matrix.file),
    )


def _rows_that_add(news: Iterable[TableNews], what: str) -> list[tuple[PublishedTable, NewRow]]:
    return [
        (one.table, row)
        for one in news
        for row in one.rows
        if one.table.follow and one.table.follow.adds == what
    ]


def _by_axis(
    rows: Iterable[tuple[PublishedTable, NewRow]],
) -> dict[str, list[tuple[PublishedTable, NewRow]]]:
    found: dict[str, list[tuple[PublishedTable, NewRow]]] = {}
    for table, row in rows:
        found.setdefault(table.key, []).append((table, row))
    return found


def _new_stack(matrix: Matrix, table: PublishedTable, row: NewRow) -> NewStack | None:
    """The stack of a row, or None: for a release candidate, or if a stack or migration has this release."""
    version = key_version(matrix.axes[table.key], row.value(table, table.key))
    if version is None or not _is_final(version) or _has_release(matrix, version, table.key):
        return None
    like = _newest_stack(matrix, table.key)
    values: dict[str, str] = {}
    notes = []
    for column, text in zip(table.columns, row.fields, strict=True):
        if text is None:
            continue
        value = _one_version(matrix.axes[column], text) if column in matrix.axes else ""
        if value:
            values[column] = value
        elif column in matrix.axes:
            notes.append(f"{table.title} lists {column} {text}, which is not one version")
        elif column not in {"released", "uploaded"}:
            notes.append(f"{table.title} lists {column} {text}")
    if like:
        named = {axis: value for axis, value in like.axes.items() if matrix.axes[axis].scheme is Scheme.NAME}
        values = {**values, **{axis: value for axis, value in named.items() if axis not in values}}
    return NewStack(
        name=_name(table.key, version.nominal),
        title=f"{matrix.axes[table.key].title} {version.nominal} with the versions of: {table.title}",
        source=row.source,
        recipe=like.recipe if like else "",
        axes={axis: values[axis] for axis in matrix.axes if axis in values},
        notes=tuple(notes),
    )


def _one_version(axis: Axis, text: str) -> str:
    """The one version that a field lists or recommends, or ""."""
    recommended = re.search(r"\(([\w.]+) recommended\)", text)
    word = recommended[1] if recommended else plain_version(text)
    try:
        return str(axis.parse(word))
    except ValueError:
        return ""


def _new_migration(
    matrix: Matrix, axis: str, rows: Sequence[tuple[PublishedTable, NewRow]], today: dt.date
) -> NewMigration | None:
    """An upgrade of the newest stack with this axis to the newest final release of these rows."""
    finals = []
    for table, row in rows:
        version = key_version(matrix.axes[axis], row.value(table, axis))
        if version is not None and _is_final(version):
            finals.append((version, table, row))
    if not finals:
        return None
    newest = max((version for version, _table, _row in finals), key=lambda one: one.order or ())
    used = _newest_stack(matrix, axis)
    if used is None or _has_release(matrix, newest, axis):
        return None
    current = matrix.axes[axis].parse(used.axes[axis])
    if (newest.order or ()) <= (current.order or ()):
        return None
    to = {axis: newest.nominal}
    sources = []
    for table, row in ((table, row) for version, table, row in finals if version == newest):
        sources.append(row.source)
        for column, text in zip(table.columns, row.fields, strict=True):
            if column in used.axes and column not in to and text:
                to.update(_needed(matrix.axes[column], used.axes[column], text))
    return NewMigration(
        name=_name(used.name, f"to-{axis}-{newest.nominal}"),
        stack=used.name,
        title=f"{matrix.axes[axis].title} {newest.nominal} in the stack {used.name}",
        to=to,
        reason=f"{matrix.axes[axis].title} {newest.nominal} was published after {current.nominal}, "
        "which the stack has",
        source="; ".join(sources),
        owner=_usual_owner(matrix),
        until=str(today + dt.timedelta(days=DAYS_TO_MIGRATE)),
    )


def _needed(axis: Axis, current: str, text: str) -> dict[str, str]:
    """The version that a row lists, if it is one version and the stack has another one that it excludes."""
    options = published_specifiers(axis.scheme, text)
    if any(option.contains(axis.parse(current)) for option in options):
        return {}
    value = _one_version(axis, text.removeprefix("=="))
    return {axis.name: value} if value else {}


def _is_final(version: Version) -> bool:
    return re.search(r"rc|alpha|beta|dev|\d[ab]\d", version.nominal, re.IGNORECASE) is None


def _has_release(matrix: Matrix, version: Version, axis: str) -> bool:
    listed = [stack.axes[axis] for stack in matrix.stacks.values() if axis in stack.axes]
    listed += [migration.to[axis] for migration in matrix.migrations.values() if axis in migration.to]
    return any(
        version.nominal == matrix.axes[axis].parse(value).nominal and "@" not in value for value in listed
    )


def _newest_stack(matrix: Matrix, axis: str) -> Stack | None:
    """The stack with the newest release on this axis, of several one without any commit.

    Stacks at commits of this axis do not count.
    """
    migrations = set(matrix.migrations)
    found = [
        ((version.order or (), not any("@" in value for value in stack.axes.values())), stack)
        for stack in matrix.stacks.values()
        if axis in stack.axes and stack.name not in migrations
        for version in [matrix.axes[axis].parse(stack.axes[axis])]
        if not version.ref
    ]
    return max(found, key=lambda pair: pair[0], default=(None, None))[1]


def _usual_owner(matrix: Matrix) -> str:
    owners = [one.owner for one in matrix.migrations.values()]
    owners += [one.owner for one in matrix.expectations.values()]
    return Counter(owners).most_common(1)[0][0] if owners else "unassigned"


def _name(*parts: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")[:50].rstrip("-")
