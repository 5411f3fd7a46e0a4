"""`npu-matrix recipe render CELL`: the exact command that starts a cell's training on NPU hosts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import EXIT_UNEXPECTED
from harness.settings import Settings
from harness.workspace.planning.open_plan import open_matrix
from harness.workspace.planning.plan_selection import find_cell
from harness.workspace.planning.recipe_selection import (
    known_errors,
    override_settings,
    recipe_facet,
    recipe_locations,
)

if TYPE_CHECKING:
    from harness.convergence.recipes.recipe_launch import Launch, Twin


@click.group(
    "recipe",
    epilog="\b\nExamples:\n  npu-matrix recipe render gspo-async --location MODEL_ROOT=/models\n"
    "  npu-matrix recipe render gspo-qwen3-30b-a3b --json | jq -r .command",
)
def command() -> None:
    """Render a cell's training as the command that starts it."""


@command.command(
    "render",
    epilog="\b\nExamples:\n  npu-matrix recipe render gspo-async --location DATA_ROOT=/data\n"
    "  npu-matrix recipe render verl-0-9-0 --deterministic --check-files",
)
@click.argument("cell")
@click.option("--recipe", "other", help="Another recipe of matrix.yaml than the cell's own.")
@click.option(
    "--location", "given", multiple=True, metavar="NAME=FOLDER", help="Where ${NAME} of it lies; repeat."
)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a setting of it; repeat.")
@click.option("--runner", default="local", show_default=True, help="Take locations from its labels.")
@click.option("--deterministic", is_flag=True, help="Add the switches that make two runs equal.")
@click.option("--check-files", is_flag=True, help="Name files that are not on this machine.")
@click.option("--address", default="", help="The Ray cluster that takes a job of several nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def render(
    settings: Settings,
    /,
    cell: str,
    other: str | None,
    given: tuple[str, ...],
    changes: tuple[str, ...],
    runner: str,
    deterministic: bool,
    check_files: bool,
    address: str,
    as_json: bool,
) -> int:
    """Render CELL's recipe: command, environment with reasons, and what would make it fail.

    A location is taken from --location, else from NPU_MATRIX_<NAME>, else from the runner's labels. Exits
    with 1 when something would make the job fail.
    """
    from harness.compat.lint.job_settings import JobSettings
    from harness.convergence.recipes.recipe_launch import render as rendered

    matrix = open_matrix(settings)
    found = find_cell(matrix, settings["profile"], cell)
    name, facet = recipe_facet(settings, matrix, found, other)
    facet = {**facet, "overrides": override_settings(facet["overrides"], changes)}
    launch = rendered(
        facet,
        locations=recipe_locations(matrix, runner, given),
        config=JobSettings.from_facet(facet).config,
        deterministic=deterministic,
        exists=(lambda path: Path(path).exists()) if check_files else None,
        address=address,
        known=known_errors(facet, found.axes),
    )
    if as_json:
        schema = {"name": "npu-matrix.recipe", "version": 1}
        report = {"schema": schema, "cell": cell, "recipe": name, **launch.as_json()}
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo("\n".join(_lines(name, launch)))
    return EXIT_UNEXPECTED if launch.problems else 0


def _lines(name: str, launch: Launch) -> list[str]:
    lines = [f"recipe {name}", "", "environment:"]
    for variable in launch.environment:
        reason = f"      because {variable.reason} ({variable.source})"
        lines += [f"  {variable.name}={variable.value}", reason]
    lines += [] if launch.environment else ["  (nothing beyond the host's)"]
    if launch.memory is not None:
        memory = launch.memory
        rollout = f"rollout weights {memory.rollout:g} of {memory.budget:g} GB"
        lines += ["", f"memory per card, without activations: training {memory.training:g} GB, {rollout}"]
    if launch.unknown:
        places = ", ".join(launch.unknown)
        lines += ["", f"not placed: {places}; the command does not work before (--location NAME=FOLDER)"]
    if launch.folder:
        lines += ["", f"to be given in: {launch.folder}"]
    if launch.settings:
        said = [f"  {key}: {value}" for key, value in launch.settings.items()]
        lines += ["", "to be said in its own configuration file:", *said]
    if launch.problems:
        lines += ["", "would fail:", *(f"  {problem}" for problem in launch.problems)]
    if launch.twin:
        lines += ["", "its objective on a tiny model, in a built cell:", f"  {_twin(launch.twin)}"]
    return [*lines, "", "command:", f"  {_wrapped(launch)}"]


def _twin(twin: Twin) -> str:
    program = ["python", "-m", "harness.convergence.trainer.trainer_program", *twin.arguments]
    return shlex.join([*program, "--device", "npu", "--folder", "F", "--out", "run.json"])


def _wrapped(launch: Launch) -> str:
    return " \\\n    ".join(shlex.quote(word) for word in launch.submit)
