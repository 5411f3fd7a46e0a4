"""Adds rows to published tables, and stacks and migrations, without changing any other byte of the file."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from harness.errors import InputError, Location
from harness.matrix.editing.yaml_edit import append_entries, end_line, entry_lines, find_section
from harness.matrix.model.constraints import PublishedTable
from harness.matrix.reading.load_matrix import parse_matrix

Row = tuple[str | None, ...]
#: Text that YAML reads as itself inside of [].
_PLAIN = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.+/@() -]*[A-Za-z0-9_.+/@()-])?")
_REVISION = re.compile(r"@[0-9a-f]{7,40}\b")
_NAMED_OTHERWISE = {"null", "true", "false", "yes", "no", "on", "off"}


@dataclass(frozen=True, kw_only=True)
class AddedRows:
    """New rows of one table. revision, date: of their document, "" to leave those of the table."""

    table: PublishedTable
    rows: tuple[Row, ...]
    revision: str = ""
    date: str = ""


@dataclass(frozen=True, kw_only=True)
class MatrixAdditions:
    """What is added to a file. stacks, migrations: name -> the fields of the entry."""

    tables: tuple[AddedRows, ...] = ()
    stacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    migrations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def with_additions(
    text: str, added: MatrixAdditions, order: Callable[[str, str], Any], file: Path | str
) -> str:
    """The text of the file with these additions. Every other byte is preserved.

    order: (axis, text of a key field) -> what rows are sorted by, None for a row that is no release. The
    edited text is parsed again: InputError if anything else would change.
    """
    edited = text
    for table in added.tables:
        edited = _with_rows(edited, table, functools.partial(order, table.table.key))
        edited = _with_scalars(edited, table)
    for section, entries in (("stacks", added.stacks), ("migrations", added.migrations)):
        if entries:
            block = "".join(entry_lines(name, fields) for name, fields in entries.items())
            edited = append_entries(edited, section, f"\n{block}" if section == "stacks" else block)
    _require_only_these(text, edited, added, file)
    return edited


def row_text(row: Row) -> str:
    """A row in flow style, as `[0.9.0, null, ">=3.10"]`."""
    return f"[{', '.join(map(_field_text, row))}]"


def _field_text(text: str | None) -> str:
    if text is None:
        return "null"
    plain = _PLAIN.fullmatch(text) and text.casefold() not in _NAMED_OTHERWISE
    return text if plain else json.dumps(text, ensure_ascii=False)


def _with_rows(text: str, added: AddedRows, order: Callable[[str], Any]) -> str:
    """Insert each row where it belongs in a table that is sorted by its key, in either direction."""
    key = added.table.columns.index(added.table.key)
    for row in sorted(added.rows, key=lambda row: order(row[key] or "")):
        node = _rows_node(text, added.table)
        lines = text.splitlines(keepends=True)
        placed = [(order(str(item.value[key].value)), item) for item in node.value]
        ranked = [(rank, item) for rank, item in placed if rank is not None]
        rank = order(row[key] or "")
        newest_first = len(ranked) > 1 and ranked[0][0] > ranked[-1][0]
        if newest_first:
            after = next((item for place, item in ranked if place < rank), None)
            at = after.start_mark.line if after else end_line(lines, ranked[-1][1])
        else:
            before = [item for place, item in ranked if place < rank]
            at = end_line(lines, before[-1]) if before else node.value[0].start_mark.line
        indent = " " * node.start_mark.column
        lines.insert(at, f"{indent}- {row_text(row)}\n")
        text = "".join(lines)
    return text


def _rows_node(text: str, table: PublishedTable) -> yaml.SequenceNode:
    pair = _member(_member(find_section(text, "published"), table.name), "rows")
    node: Any = pair[1] if pair else None
    if not isinstance(node, yaml.SequenceNode) or node.flow_style or not node.value:
        raise InputError(
            f"the rows of table {table.name!r} are not a list with one row per line",
            where=table.where,
            fix="write each row on a line of its own, as `- [0.9.0, null]`",
        )
    return node


def _member(pair: tuple[Any, Any] | None, name: str) -> tuple[Any, Any] | None:
    node = pair[1] if isinstance(pair, tuple) else None
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next(((key, value) for key, value in pairs if key.value == name), None)


def _with_scalars(text: str, added: AddedRows) -> str:
    """The date of the table and the revision in its source, if both are known for the new rows."""
    source = _REVISION.findall(added.table.source)
    changes = {"date": added.date} if added.date else {}
    if added.revision and len(source) == 1:
        changes["source"] = added.table.source.replace(source[0], f"@{added.revision}")
    for name, value in changes.items():
        found = _member(_member(find_section(text, "published"), added.table.name), name)
        if found is None or found[1].start_mark.line != found[1].end_mark.line:
            continue
        lines = text.splitlines(keepends=True)
        start, end = found[1].start_mark, found[1].end_mark
        line = lines[start.line]
        old = line[start.column : end.column]
        new = old.replace(source[0], f"@{added.revision}") if name == "source" else value
        lines[start.line] = f"{line[: start.column]}{new}{line[end.column :]}"
        text = "".join(lines)
    return text


def _require_only_these(before: str, after: str, added: MatrixAdditions, file: Path | str) -> None:
    """InputError unless the edited text has exactly these additions."""
    old, new = parse_matrix(before, file), parse_matrix(after, file)
    tables = dict(old.published)
    for one in added.tables:
        tables[one.table.name] = replace(
            tables[one.table.name], rows=(*tables[one.table.name].rows, *one.rows)
        )
    same = new.stacks.keys() - new.migrations.keys() == {
        *(old.stacks.keys() - old.migrations.keys()),
        *added.stacks,
    } and new.migrations.keys() == {*old.migrations, *added.migrations}
    same = same and all(new.stacks[name].axes == old.stacks[name].axes for name in old.stacks)
    same = same and all(
        sorted(map(repr, new.published[name].rows)) == sorted(map(repr, table.rows))
        for name, table in tables.items()
    )
    if not same:
        raise InputError(
            "the additions cannot be made without changing something else",
            where=Location(file),
            fix="add them by hand:\n"
            + "".join(f"  {one.table.name}: {row_text(row)}\n" for one in added.tables for row in one.rows),
        )
