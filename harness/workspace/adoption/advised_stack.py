"""Adds a stack that `advise` proposes to matrix.yaml, which is written if this folder has none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness import __version__
from harness.atomic_write import replace_bytes
from harness.errors import InputError, Location
from harness.matrix.editing.add_published import MatrixAdditions, with_additions
from harness.matrix.editing.yaml_edit import entry_lines, read_matrix_text, write_matrix_text
from harness.matrix.version_matrix import Matrix
from harness.settings import MATRIX_FILE, Settings

SOURCE = "npu-matrix advise"


def add_stack(settings: Settings, matrix: Matrix, name: str, axes: Mapping[str, str]) -> str:
    """Add the stack, and say where; InputError if the matrix has another stack of this name."""
    file = settings.path("matrix") if settings.has_own_matrix else settings.root / MATRIX_FILE
    entry = {"title": name, "source": SOURCE, "axes": dict(axes)}
    if not settings.has_own_matrix:
        _write_first(file, name, entry)
        return f"wrote {file} with the stack {name}, the stack of its default profile"
    known = matrix.stacks.get(name)
    if known is not None:
        return _unchanged(known.axes, axes, name, known.where)
    text, line_end = read_matrix_text(file)
    added = MatrixAdditions(stacks={name: entry})
    write_matrix_text(file, with_additions(text, added, lambda _axis, _text: None, file), line_end)
    return f"added the stack {name} to {file}"


def _unchanged(known: Mapping[str, str], axes: Mapping[str, str], name: str, where: Location) -> str:
    if dict(known) == dict(axes):
        return f"{where} has the stack {name}"
    raise InputError(
        f"there is another stack {name}",
        where=where,
        fix="rename that stack, or remove it if it is an earlier advice",
    )


def _write_first(file: Path, name: str, entry: Mapping[str, object]) -> None:
    lines = [
        f"# Made by {SOURCE}. Everything else comes from the matrix of npu-matrix.",
        "format: 1",
        f"include: npu-matrix:{__version__}",
        "",
        "stacks:",
        entry_lines(name, entry).rstrip(),
        "",
        "profiles:",
        "  default:",
        f"    title: {name}",
        f"    select: [{{stacks: [{name}]}}]",
    ]
    replace_bytes(file, "".join(f"{line}\n" for line in lines).encode(), mode=0o644)
