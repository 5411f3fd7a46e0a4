"""Edits of matrix.yaml that keep every other byte: comments and layout are the work of people."""

from __future__ import annotations

import io
from collections.abc import Collection

import yaml

WIDTH = 116


def section_of(text: str, section: str) -> tuple[yaml.ScalarNode, yaml.Node] | None:
    """Key and value of a section of the file, or None where it has none."""
    root = yaml.compose(text, yaml.SafeLoader)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == section:
            return key, value
    return None


def without(text: str, section: str, names: Collection[str]) -> str:
    """The text without these entries of the section; the section goes with its last one."""
    found = section_of(text, section)
    if not names or found is None:
        return text
    text = text if text.endswith("\n") else f"{text}\n"
    key, entries_node = found
    if not isinstance(entries_node, yaml.MappingNode) or entries_node.flow_style:
        return _rewritten(text, section, names)
    lines = text.splitlines(keepends=True)
    entries = entries_node.value
    drop: set[int] = set()
    for name, value in entries:
        if name.value in names:
            drop |= set(range(name.start_mark.line, end_of(lines, value)))
    if all(name.value in names for name, _value in entries):
        drop.add(key.start_mark.line)
    return "".join(line for number, line in enumerate(lines) if number not in drop)


def end_of(lines: list[str], value: yaml.Node) -> int:
    """The line after the last one of a value; comments and blank lines behind it are not its own."""
    # A mapping in block style ends where the next thing begins, anything else where it ends itself.
    block = isinstance(value, yaml.MappingNode) and not value.flow_style
    end = value.end_mark.line + (0 if block else 1)
    while end > value.start_mark.line + 1 and (
        not lines[end - 1].strip() or lines[end - 1].lstrip()[0] == "#"
    ):
        end -= 1
    return end


def _rewritten(text: str, section: str, names: Collection[str]) -> str:
    """For a list in flow style: written again as ruamel.yaml does, with comments kept."""
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
