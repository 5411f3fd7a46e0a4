"""The options `--only` and `--check` of commands that work on a part of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from harness.cli.completion import complete_cells, complete_checks


def only_option(text: str) -> Callable[[Any], Any]:
    """`--only GLOB`, repeatable, with the cells as completion. text: its help."""
    return click.option("--only", multiple=True, metavar="GLOB", shell_complete=complete_cells, help=text)


def check_option(text: str) -> Callable[[Any], Any]:
    """`--check`, repeatable, which the command gets as `checks`, with the checks as completion."""
    return click.option("--check", "checks", multiple=True, shell_complete=complete_checks, help=text)
