"""Shell completion of cells, checks and profiles: what the matrix of this folder has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from harness.errors import HarnessError
from harness.settings import Settings, find_root, load_settings

if TYPE_CHECKING:
    from harness.matrix.version_matrix import Matrix


def complete_cells(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Cell ids of the profile and names of stacks; after a comma, the next one."""
    found: dict[str, str] = {}
    for settings, matrix in _opened(ctx):
        found = {stack.name: stack.title for stack in matrix.stacks.values()}
        for cell in matrix.cells(settings["profile"]):
            found.setdefault(cell.stack or cell.id, cell.title)
    return _items(found.items(), incomplete)


def complete_checks(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of checks; after a comma, the next one."""
    from harness.plan.tasks.check_registry import all_checks

    return _items(((check.name, check.question) for check in all_checks()), incomplete)


def complete_profiles(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Profiles of the matrix."""
    found = [
        (profile.name, profile.title)
        for _settings, matrix in _opened(ctx)
        for profile in matrix.profiles.values()
    ]
    return _items(found, incomplete)


def _items(named: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    before, comma, last = incomplete.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{name}", help=text) for name, text in named if name.startswith(last)
    ]


def _opened(ctx: click.Context) -> Iterator[tuple[Settings, Matrix]]:
    """The settings and the matrix, or nothing: a completion never prints an error."""
    from harness.matrix.reading.load_matrix import load_matrix

    given = ctx.find_root().params
    root = given.get("root")
    flags = {name: given[name] for name in ("matrix", "profile") if given.get(name)}
    with contextlib.suppress(HarnessError, OSError):
        settings = load_settings(
            flags, os.environ, (Path(root) if root else find_root(Path.cwd())).absolute()
        )
        if settings.lacks_matrix:
            settings = settings.with_shipped_matrix()
        yield settings, load_matrix(settings.path("matrix"))
