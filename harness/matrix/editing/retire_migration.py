"""The end of a migration: the old row takes the new values, and the entry goes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.errors import InputError, Location
from harness.matrix.editing.yaml_edit import end_line, find_section, remove_entries
from harness.matrix.model.migration import Migration
from harness.matrix.reading.load_matrix import parse_matrix


def retire_migration(text: str, migration: Migration, new_values: Mapping[str, str], file: Path | str) -> str:
    """The file after the migration; `new_values` are the axes of its row, with commits for what it followed.

    Every other byte stays; expectations of the new row become those of the old one. What comes out is read
    again: InputError when anything else would differ.
    """
    changed = {axis: new_values[axis] for axis in migration.to}
    edited = _with_values(text, migration.stack, changed)
    edited = _renamed(edited, migration)
    edited = remove_entries(edited, "migrations", {migration.name})
    before, after = parse_matrix(text, file), parse_matrix(edited, file)
    wanted = {**before.stacks[migration.stack].axes, **changed}
    rows = {name: stack.axes for name, stack in before.stacks.items() if name != migration.name}
    if {name: stack.axes for name, stack in after.stacks.items()} != {**rows, migration.stack: wanted}:
        raise InputError(
            "the row cannot be edited without touching something else",
            where=Location(file),
            fix=f"set these axes of stack {migration.stack!r} by hand, and remove the migration: "
            + ", ".join(f"{axis}: {value}" for axis, value in changed.items()),
        )
    return edited


def _with_values(text: str, stack: str, values: Mapping[str, str]) -> str:
    axes = _axes(text, stack)
    if axes is None:
        return text
    lines = text.splitlines(keepends=True)
    written = {key.value: value for key, value in axes.value}
    # From the end, so that the places of what comes before stay.
    new = "".join(
        f"{' ' * axes.start_mark.column}{axis}: {value}\n"
        for axis, value in values.items()
        if axis not in written
    )
    if new:
        lines.insert(end_line(lines, axes), new)
    for axis in sorted(written.keys() & values.keys(), key=lambda axis: -written[axis].start_mark.index):
        start, end = written[axis].start_mark, written[axis].end_mark
        line = lines[start.line]
        lines[start.line] = f"{line[: start.column]}{values[axis]}{line[end.column :]}"
    return "".join(lines)


def _axes(text: str, stack: str) -> yaml.MappingNode | None:
    """The axes of a stack, when they stand one on a line."""
    found = find_section(text, "stacks")
    node: Any = _value(_value(found[1], stack), "axes") if found else None
    return node if isinstance(node, yaml.MappingNode) and not node.flow_style else None


def _value(node: Any, name: str) -> Any:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


def _renamed(text: str, migration: Migration) -> str:
    """Expectations that name the new row name the old one."""
    found = find_section(text, "expectations")
    if found is None or not isinstance(found[1], yaml.MappingNode):
        return text
    lines = text.splitlines(keepends=True)
    for _, entry in found[1].value:
        cells = _value(entry, "cells")
        if isinstance(cells, yaml.ScalarNode) and cells.value == migration.name:
            start, end = cells.start_mark, cells.end_mark
            line = lines[start.line]
            lines[start.line] = f"{line[: start.column]}{migration.stack}{line[end.column :]}"
    return "".join(lines)
