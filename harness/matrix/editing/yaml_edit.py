"""Edits of matrix.yaml that preserve every other byte, including comments and layout."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.atomic_write import replace_bytes
from harness.errors import InputError, Location

WIDTH = 116
CRLF = "\r\n"


def read_matrix_text(file: Path) -> tuple[str, str]:
    """The text with LF line endings, and the original line ending; InputError if the file mixes two."""
    try:
        text = file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("the matrix cannot be read", where=Location(file), why=str(error)) from error
    plain = text.replace(CRLF, "\n")
    if CRLF not in text:
        return plain, "\n"
    if text.count("\n") != text.count(CRLF):
        raise InputError(
            "the matrix file mixes LF and CRLF line endings",
            where=Location(file),
            why="an edit must preserve every byte that it does not change",
            fix="save the file with one kind of line ending",
        )
    return plain, CRLF


def write_matrix_text(file: Path, text: str, line_end: str) -> None:
    """Replace the file atomically; InputError if it cannot be written."""
    try:
        replace_bytes(Path(os.path.realpath(file)), text.replace("\n", line_end).encode())
    except OSError as error:
        raise InputError(
            "the matrix cannot be written", where=Location(file), why=error.strerror or str(error)
        ) from error


def find_section(text: str, section: str) -> tuple[yaml.ScalarNode, yaml.Node] | None:
    """The key and value nodes of a section, or None if the file does not have the section."""
    root = yaml.compose(text, yaml.SafeLoader)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == section:
            return key, value
    return None


def remove_entries(text: str, section: str, names: Collection[str]) -> str:
    """The text without these entries of the section; a section that becomes empty is removed."""
    nodes = find_section(text, section)
    if not names or nodes is None:
        return text
    text = text if text.endswith("\n") else f"{text}\n"
    key, entries_node = nodes
    if not isinstance(entries_node, yaml.MappingNode) or entries_node.flow_style:
        return _rewritten(text, section, names)
    lines = text.splitlines(keepends=True)
    entries = entries_node.value
    drop: set[int] = set()
    for name, value in entries:
        if name.value in names:
            drop |= set(range(name.start_mark.line, end_line(lines, value)))
    if all(name.value in names for name, _value in entries):
        drop.add(key.start_mark.line)
    return "".join(line for number, line in enumerate(lines) if number not in drop)


def append_entries(text: str, section: str, block: str) -> str:
    """The text with more entries at the end of a section, which is added if the file lacks it.

    block: the lines of the entries, indented by two.
    """
    text = text if text.endswith("\n") else f"{text}\n"
    found = find_section(text, section)
    if found is None:
        return f"{text}\n{section}:\n{block}"
    key, entries = found
    lines = text.splitlines(keepends=True)
    if not isinstance(entries, yaml.MappingNode) or not entries.value:
        lines[key.start_mark.line] = f"{section}:\n"
        return "".join([*lines[: key.start_mark.line + 1], block, *lines[key.start_mark.line + 1 :]])
    end = end_line(lines, entries.value[-1][1])
    return "".join([*lines[:end], block, *lines[end:]])


def entry_lines(name: str, fields: Mapping[str, Any]) -> str:
    """An entry of a section in block style, indented by two; empty fields are left out."""
    from ruamel.yaml import YAML  # slow to import, and only edits of matrix.yaml write YAML

    writer = YAML()
    writer.width = WIDTH
    writer.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    writer.dump({name: {key: value for key, value in fields.items() if value}}, out)
    return "".join(f"  {line}\n" for line in out.getvalue().splitlines())


def end_line(lines: list[str], value: yaml.Node) -> int:
    """The line after the last line of a value, without trailing comments and blank lines."""
    # The end mark of a block mapping is the start of the next node.
    block = isinstance(value, yaml.MappingNode) and not value.flow_style
    end = value.end_mark.line + (0 if block else 1)
    while end > value.start_mark.line + 1 and (
        not lines[end - 1].strip() or lines[end - 1].lstrip()[0] == "#"
    ):
        end -= 1
    return end


def _rewritten(text: str, section: str, names: Collection[str]) -> str:
    """Rewrite a flow-style section with ruamel.yaml, which preserves comments."""
    # The import takes 50 ms, and only sections in flow style need it.
    from ruamel.yaml import YAML

    rt = YAML()
    rt.preserve_quotes = True
    rt.width = WIDTH
    data = rt.load(text)
    for name in names:
        data[section].pop(name, None)
    out = io.StringIO()
    rt.dump(data, out)
    return out.getvalue()
