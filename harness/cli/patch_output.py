"""Options and output that the commands of `npu-matrix patches` share."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from harness.errors import InputError, Location, Problem

CODES = (
    "\n\n\b\nExit codes: 0 {ok}; 1 {unexpected};\n"
    "  2 bad usage or a bad input file; 3 no patch is for this version; 4 infrastructure error."
)
DIRECTORY = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
ANY = click.Path(path_type=Path)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def stack_options(function: Any) -> Any:
    """Decorate a command with the options that select patches."""
    function = click.option(
        "--upstream",
        default="",
        help="Which project's patch series to use. Default: detected from the source tree, otherwise verl.",
    )(function)
    return click.option(
        "--patches", "folder", type=ANY, help="Folder of patches. Default: patches/ of the checkout."
    )(function)


def say(*lines: str) -> None:
    """Print lines with control characters escaped, because patches and commits may contain any text."""
    from harness.report.model.visible_text import visible

    for line in lines:
        click.echo(visible(line))


def print_facts(schema: str, facts: Mapping[str, object]) -> None:
    """Print facts as JSON, with the name and version of their schema."""
    click.echo(json.dumps({"schema": {"name": f"npu-matrix/{schema}", "version": 1}, **facts}, indent=2))


def problem_facts(problem: Problem) -> dict[str, str]:
    """A problem as a JSON object."""
    where = str(problem.where) if problem.where else ""
    return {"what": problem.what, "where": where, "why": problem.why, "fix": problem.fix}


def write_file(file: Path, data: bytes | str) -> None:
    """Write a file, text as UTF-8; InputError if it cannot be written."""
    try:
        file.write_bytes(data.encode("utf-8", "replace") if isinstance(data, str) else data)
    except OSError as error:
        raise InputError(
            "this file cannot be written", where=Location(file), why=error.strerror or str(error)
        ) from error


def today() -> dt.date:
    """The current date in UTC."""
    return dt.datetime.now(tz=dt.UTC).date()
