"""Reads the rules for cells: published tables, constraints, pins and overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.matrix.cells.pins import check_template, normal_package, placeholders
from harness.matrix.document.yaml_positions import NodePath
from harness.matrix.model.constraints import (
    AxisAgreement,
    Constraint,
    PublishedTable,
    Requirement,
    TableRequirement,
    ViolationKind,
    table_requirement,
)
from harness.matrix.model.definitions import Axis, PinRule
from harness.matrix.model.followed_source import FollowedSource
from harness.matrix.reading.resolve_names import Entry, NameResolver, text, texts


def read_table(resolver: NameResolver, name: str, entry: Entry) -> PublishedTable:
    """The published table in `entry`, which satisfies the schema; problems are added to `resolver`."""
    path: NodePath = ("published", name)
    table = PublishedTable(
        name=name,
        title=text(entry["title"]),
        source=text(entry["source"]),
        date=text(entry["date"]),
        key=entry["key"],
        columns=tuple(texts(entry["columns"])),
        rows=tuple(tuple(None if cell is None else text(cell) for cell in row) for row in entry["rows"]),
        follow=_followed(entry.get("follow")),
        where=resolver.document.where(path, key=True),
    )
    if not resolver.known((*path, "key"), "column", table.key, table.columns):
        return table
    _check_followed(resolver, (*path, "follow"), table)
    seen: set[str | None] = set()
    for index, row in enumerate(table.rows):
        at: NodePath = (*path, "rows", index)
        if len(row) != len(table.columns):
            what = f"the row has {len(row)} fields, but the table has {len(table.columns)} columns"
            resolver.problem(
                at, what, fix=f"give a value for each of {', '.join(table.columns)}; null means no value"
            )
            continue
        key = row[table.columns.index(table.key)]
        if key in seen or key is None:
            resolver.problem(
                at,
                f"another row above also has {table.key} {key!r}"
                if key
                else f"the row has no value for the key column {table.key!r}",
                fix="each row needs its own value in the key column",
            )
        seen.add(key)
    return table


def _followed(entry: Entry | None) -> FollowedSource | None:
    if not entry:
        return None
    return FollowedSource(
        axis=entry["axis"],
        document=text(entry.get("document", "")),
        headers={column: text(header) for column, header in entry.get("headers", {}).items()},
        each_release=entry.get("each_release", False),
        adds=entry.get("adds") or "",
    )


def _check_followed(resolver: NameResolver, path: NodePath, table: PublishedTable) -> None:
    source = table.follow
    if source is None or (axis := resolver.axis((*path, "axis"), source.axis)) is None:
        return
    for column in source.headers:
        resolver.known((*path, "headers", column), "column", column, table.columns, key=True)
    if source.axis != table.key:
        resolver.problem(
            (*path, "axis"), f"the rows of this table are looked up by {table.key}", fix="use it"
        )
    elif source.document and not axis.repository:
        resolver.problem((*path, "document"), f"the axis {axis.name} names no repository")
    elif source.document and not source.each_release and table.key not in source.headers:
        resolver.problem((*path, "document"), "the headers lack the column that is the key of the table")
    elif not source.document and not axis.package:
        resolver.problem((*path, "axis"), f"the axis {axis.name} names no package", fix="name a document")


def published_versions(axis: Axis, tables: Iterable[PublishedTable]) -> frozenset[str]:
    """The versions of an axis that the tables list, in normal form; ranges and other texts are ignored."""
    texts = {
        part
        for table in tables
        if axis.name in table.columns and all(len(row) == len(table.columns) for row in table.rows)
        for row in table.rows
        for part in (row[table.columns.index(axis.name)] or "").removeprefix("==").split(" / ")
    }
    return frozenset(filter(None, (_nominal(axis, part) for part in texts)))


def _nominal(axis: Axis, value: str) -> str:
    try:
        return axis.parse(value).nominal
    except ValueError:
        return ""


def read_constraint(
    resolver: NameResolver, tables: Mapping[str, PublishedTable], name: str, entry: Entry
) -> Constraint:
    """The constraint in `entry`; it may refer to `tables`."""
    path: NodePath = ("constraints", name)
    if ("require" in entry) == ("forbid" in entry):
        resolver.problem(
            path,
            f"constraint {name!r} needs either 'require' or 'forbid'",
            fix="split it into two constraints if it needs both",
            key=True,
        )
    return Constraint(
        id=name,
        kind=ViolationKind(entry.get("kind", ViolationKind.INCOMPATIBLE.value)),
        when=resolver.conditions((*path, "when"), entry.get("when")),
        require=_requirements(resolver, tables, (*path, "require"), entry.get("require")),
        forbid=resolver.conditions((*path, "forbid"), entry.get("forbid")),
        reason=text(entry["reason"]),
        source=text(entry["source"]),
        where=resolver.document.where(path, key=True),
    )


def _requirements(
    resolver: NameResolver, tables: Mapping[str, PublishedTable], path: NodePath, entries: Entry | None
) -> tuple[Requirement, ...]:
    return tuple(
        rule
        for axis, entry in (entries or {}).items()
        for rule in _requirement(resolver, tables, path, axis, entry)
    )


def _requirement(
    resolver: NameResolver, tables: Mapping[str, PublishedTable], path: NodePath, axis: str, entry: Any
) -> Sequence[Requirement]:
    if not isinstance(entry, dict):
        return resolver.conditions(path, {axis: entry})
    at: NodePath = (*path, axis)
    known = resolver.axis(at, axis, key=True)
    if "same_as" in entry:
        other = resolver.axis((*at, "same_as"), entry["same_as"])
        part = entry.get("part", "nominal")
        return [AxisAgreement(axis=axis, other=other.name, part=part)] if known and other else []
    return _listing(resolver, tables, at, known, entry) if known else []


def _listing(
    resolver: NameResolver, tables: Mapping[str, PublishedTable], path: NodePath, axis: Axis, entry: Entry
) -> list[TableRequirement]:
    name = entry["table"]
    if not resolver.known((*path, "table"), "table", name, resolver.names("published")) or name not in tables:
        return []
    table, column = tables[name], entry.get("column", axis.name)
    at: NodePath = (*path, "column") if "column" in entry else (*path, "table")
    if not resolver.known(at, f"column of table {name!r}", column, table.columns):
        return []
    if table.key not in table.columns or any(len(row) != len(table.columns) for row in table.rows):
        return []
    if resolver.axis(("published", name, "key"), table.key) is None:
        return []
    schemes = {known.name: known.scheme for known in resolver.axes.values()}
    part = entry.get("part", "nominal")
    listing = resolver.attempt(path, lambda: table_requirement(table, axis.name, column, schemes, part))
    return [listing] if listing else []


def read_pin_rule(
    resolver: NameResolver, tables: Mapping[str, PublishedTable], path: NodePath, entry: Entry
) -> PinRule:
    """The pin or override in `entry`; its conditions may refer to `tables`."""
    field = "require" if "require" in entry else "override"
    yields_to = text(entry.get("yields_to", ""))
    if (field not in entry and not yields_to) or (field in entry and yields_to):
        resolver.problem(path, "an override needs either 'override' or 'yields_to'", fix="write one of them")
    template = text(entry.get(field, ""))
    axes = resolver.attempt((*path, field), lambda: placeholders(template))
    for axis in axes or ():
        resolver.axis((*path, field), axis)
    if axes is not None and template:
        resolver.attempt((*path, field), lambda: check_template(template, axes))
    return PinRule(
        when=_requirements(resolver, tables, (*path, "when"), entry.get("when")),
        template=template,
        reason=text(entry["reason"]),
        source=text(entry["source"]),
        axes=axes or (),
        of=_requirers(entry.get("of")),
        yields_to=normal_package(yields_to),
        where=resolver.document.where(path),
    )


def _requirers(of: str | Sequence[str] | None) -> tuple[str, ...]:
    names = (of,) if isinstance(of, str) else of or ()
    return tuple(normal_package(text(name)) for name in names)
