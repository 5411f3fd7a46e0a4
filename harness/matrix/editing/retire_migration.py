"""Finishes a migration: the stack gets the new versions, and the migration entry is removed."""

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
    """The text of the file after the migration.

    new_values: the axes of the migrated stack, with commits for the refs that it followed. Every other byte
    is preserved, and expectations for the migration apply to the stack afterwards. The edited text is parsed
    again: InputError if anything else would change.
    """
    changed = {axis: new_values[axis] for axis in migration.to}
    edited = _with_values(text, migration.stack, changed)
    edited = _renamed(edited, migration)
    edited = remove_entries(edited, "migrations", {migration.name})
    before, after = parse_matrix(text, file), parse_matrix(edited, file)
    expected = {**before.stacks[migration.stack].axes, **changed}
    rows = {name: stack.axes for name, stack in before.stacks.items() if name != migration.name}
    if {name: stack.axes for name, stack in after.stacks.items()} != {**rows, migration.stack: expected}:
        raise InputError(
            "the stack cannot be edited automatically without changing something else",
            where=Location(file),
            fix=f"set these axes of stack {migration.stack!r} by hand, and remove the migration entry: "
            + ", ".join(f"{axis}: {value}" for axis, value in changed.items()),
        )
    return edited


def _with_values(text: str, stack: str, values: Mapping[str, str]) -> str:
    axes = _axes(text, stack)
    if axes is None:
        return text
    lines = text.splitlines(keepends=True)
    written = {key.value: value for key, value in axes.value}
    # Edit from the end, so that earlier positions stay valid.
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
    """The axes of a stack, if they are written in block style."""
    section = find_section(text, "stacks")
    node: Any = _value(_value(section[1], stack), "axes") if section else None
    return node if isinstance(node, yaml.MappingNode) and not node.flow_style else None


def _value(node: Any, name: str) -> Any:
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((value for key, value in pairs if key.value == name), None)


def _renamed(text: str, migration: Migration) -> str:
    """Rename the migration to its stack in the expectations."""
    section = find_section(text, "expectations")
    if section is None or not isinstance(section[1], yaml.MappingNode):
        return text
    lines = text.splitlines(keepends=True)
    for _, entry in section[1].value:
        cells = _value(entry, "cells")
        if isinstance(cells, yaml.ScalarNode) and cells.value == migration.name:
            start, end = cells.start_mark, cells.end_mark
            line = lines[start.line]
            lines[start.line] = f"{line[: start.column]}{migration.stack}{line[end.column :]}"
    return "".join(lines)
