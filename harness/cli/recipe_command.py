"""`npu-matrix recipe render CELL`: the command that starts the training of a cell on NPU hosts."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.completion import complete_cells
from harness.errors import EXIT_UNEXPECTED
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.convergence.recipes.recipe_launch import Launch
    from harness.convergence.recipes.recipe_twin import Twin


@click.group(
    "recipe",
    epilog="\b\nExamples:\n  npu-matrix recipe render gspo-async --location MODEL_ROOT=/models\n"
    "  npu-matrix recipe render gspo-qwen3-30b-a3b --json | jq -r .command",
)
def command() -> None:
    """Print the command that starts the training of a cell."""


@command.command(
    "render",
    epilog="\b\nExamples:\n  npu-matrix recipe render gspo-async --location DATA_ROOT=/data\n"
    "  npu-matrix recipe render verl-0-9-0 --deterministic --check-files\n"
    "  npu-matrix recipe render verl-0-9-0 --script > run.sh\n"
    "  npu-matrix recipe render verl-0-9-0 --from-script run.sh",
)
@click.argument("cell", shell_complete=complete_cells)
@click.option("--recipe", "other", help="Use this recipe of matrix.yaml. Default: the recipe of the cell.")
@click.option(
    "--from-script",
    "script",
    type=click.Path(path_type=Path),
    help="Render the job of this launch script instead of a recipe.",
)
@click.option("--script", "as_script", is_flag=True, help="Print a bash script, which `lint` reads.")
@click.option(
    "--location",
    "given",
    multiple=True,
    metavar="NAME=FOLDER",
    help="The folder that ${NAME} in the recipe stands for; may be repeated.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting of the recipe; may be repeated.",
)
@click.option(
    "--runner", default="local", show_default=True, help="Read locations from the labels of this runner."
)
@click.option("--deterministic", is_flag=True, help="Add the settings that make training deterministic.")
@click.option("--check-files", is_flag=True, help="List files that do not exist on this machine.")
@click.option("--address", default="", help="Address of the Ray cluster for a job on several nodes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def render(
    settings: Settings,
    /,
    cell: str,
    other: str | None,
    script: Path | None,
    as_script: bool,
    given: tuple[str, ...],
    changes: tuple[str, ...],
    runner: str,
    deterministic: bool,
    check_files: bool,
    address: str,
    as_json: bool,
) -> int:
    """Print the command and environment of the recipe of CELL.

    Problems that would make it fail are printed too. The folder of a location comes from --location, else
    from the environment variable NPU_MATRIX_<NAME>, else from the labels of the runner. Exits with 1 when the
    job would fail.
    """
    from harness.compat.lint.job_settings import JobSettings
    from harness.convergence.recipes.recipe_launch import render as rendered
    from harness.convergence.recipes.recipe_script import script_text
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.planning.plan_selection import find_cell
    from harness.workspace.planning.recipe_selection import (
        known_errors,
        mirrored_verl,
        override_settings,
        recipe_facet,
        recipe_locations,
        script_facet,
    )

    if script and other:
        raise click.UsageError("--recipe and --from-script exclude each other")

    matrix = open_matrix(settings)
    found = find_cell(matrix, settings["profile"], cell)
    name, facet = script_facet(script) if script else recipe_facet(settings, matrix, found, other)
    facet = {**facet, "overrides": override_settings(facet["overrides"], changes)}
    launch = rendered(
        facet,
        locations=recipe_locations(matrix, runner, given),
        options=JobSettings.from_facet(facet).options,
        deterministic=deterministic,
        exists=(lambda path: Path(path).exists()) if check_files else None,
        address=address,
        known_problems=known_errors(facet, found.axes, mirrored_verl(found.axes)),
    )
    if as_script:
        click.echo(script_text(name, launch), nl=False)
    elif as_json:
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
    lines += [] if launch.environment else ["  (no variables besides those of the host)"]
    if launch.memory is not None:
        memory = launch.memory
        rollout = f"rollout weights {memory.rollout:g} of {memory.budget:g} GB"
        lines += ["", f"memory per card, without activations: training {memory.training:g} GB, {rollout}"]
    if launch.unknown:
        locations = ", ".join(launch.unknown)
        lines += [
            "",
            f"unknown locations: {locations}; before you run the command, set each with --location",
        ]
    if launch.folder:
        lines += ["", f"run in this folder: {launch.folder}"]
    if launch.settings:
        own_settings = [f"  {key}: {value}" for key, value in launch.settings.items()]
        lines += ["", "to be set in its own configuration file:", *own_settings]
    if launch.problems:
        lines += ["", "would fail:", *(f"  {problem}" for problem in launch.problems)]
    if launch.twin:
        lines += ["", "the same objective on a tiny model, in a built cell:", f"  {_twin(launch.twin)}"]
        lines += [
            "",
            "what the tiny run leaves out:",
            *(f"  {part.sentence}" for part in launch.twin.left_out),
        ]
    return [*lines, "", "command:", f"  {_wrapped(launch)}"]


def _twin(twin: Twin) -> str:
    program = ["python", "-m", "harness.convergence.trainer.trainer_program", *twin.arguments]
    return shlex.join([*program, "--device", "npu", "--folder", "F", "--out", "run.json"])


def _wrapped(launch: Launch) -> str:
    return " \\\n    ".join(shlex.quote(word) for word in launch.submit)
