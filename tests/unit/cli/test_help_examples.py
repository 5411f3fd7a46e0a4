"""The examples in the help of commands select cells of the shipped matrix."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest

from harness.cli.app import COMMANDS, app
from harness.matrix.reading.load_matrix import load_matrix
from harness.package import shipped_file
from harness.settings import load_settings
from harness.workspace.planning.plan_selection import select_cells

# `matrix follow` and `mirrors update` name packages; cells named `as-found` are in a matrix of the user.
OWN = {"as-found"}


def examples(command: click.Command) -> Iterator[str]:
    for line in (command.epilog or "").splitlines():
        if line.strip().startswith("npu-matrix "):
            yield line.strip()
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from examples(inner)


def selections() -> list[tuple[str, str]]:
    """Profile and glob of each example with `--only`."""
    found = set()
    for example in examples(app):
        words = shlex.split(example.partition("|")[0].partition(">")[0])
        if "--only" not in words or "follow" in words:
            continue
        profile = words[words.index("--profile") + 1] if "--profile" in words else "default"
        glob = words[words.index("--only") + 1]
        if not glob.isupper() and glob not in OWN:
            found.add((profile, glob))
    return sorted(found)


def test_the_examples_were_found() -> None:
    assert len(COMMANDS) < len(list(examples(app)))
    assert len(selections()) > 3


@pytest.mark.parametrize(("profile", "glob"), selections())
def test_an_example_selects_a_cell(profile: str, glob: str) -> None:
    file = shipped_file("matrix.yaml")
    settings = load_settings({"profile": profile}, {}, file.parent)
    assert select_cells(settings, load_matrix(file), [glob])
