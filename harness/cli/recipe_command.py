"""`npu-matrix recipe render CELL`: the exact command that starts a cell's training on NPU hosts."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.errors import EXIT_UNEXPECTED, InputError, NothingSelectedError
from harness.settings import ENVIRONMENT_PREFIX, Settings
from harness.workspace.open_plan import facet_inputs, find_cell, open_matrix

if TYPE_CHECKING:
    from harness.convergence.recipes.recipe_launch import Launch, Twin
    from harness.matrix.version_matrix import Matrix


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
    name, facet = _recipe(settings, matrix, found, other)
    facet = {**facet, "overrides": _changed(facet["overrides"], changes)}
    launch = rendered(
        facet,
        locations=_locations(matrix, runner, given),
        config=JobSettings.from_facet(facet).config,
        deterministic=deterministic,
        exists=(lambda path: Path(path).exists()) if check_files else None,
        address=address,
        known=_known(facet, found.axes),
    )
    if as_json:
        schema = {"name": "npu-matrix.recipe", "version": 1}
        report = {"schema": schema, "cell": cell, "recipe": name, **launch.as_json()}
        click.echo(json.dumps(report, indent=2))
    else:
        click.echo("\n".join(_lines(name, launch)))
    return EXIT_UNEXPECTED if launch.problems else 0


def _changed(overrides: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The overrides with those of --set in the place of the ones they name, with Hydra's `+` or without."""
    found = dict(overrides)
    for pair in changes:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip("+"):
            raise InputError(
                f"--set {pair!r} is not KEY=VALUE", fix="name an override, e.g. trainer.total_epochs=1"
            )
        there = next((name for name in found if name.lstrip("+") == key.lstrip("+")), key)
        found[there] = value
    return found


def _known(facet: Mapping[str, Any], versions: Mapping[str, str]) -> list[str]:
    """What rules call an error in these versions, as the recipe's authors have it."""
    from harness.compat.lint.job_settings import JobSettings
    from harness.compat.lint.lint_check import lint_job

    findings = lint_job(JobSettings.from_facet(facet), versions).findings
    return [f"{one.message} ({one.rule}): {one.fix}" for one in findings if one.severity == "error"]


def _recipe(
    settings: Settings, matrix: Matrix, cell: Any, other: str | None
) -> tuple[str, Mapping[str, Any]]:
    from harness.plan.keys.facets import facet_values
    from harness.workspace.selection import no_match

    if other is not None:
        if other not in matrix.recipes:
            raise no_match("recipe", other, sorted(matrix.recipes))
        cell = _with_recipe(cell, other)
    facet = facet_values(cell, ("recipe",), facet_inputs(settings, matrix))["recipe"]
    if facet is None:
        raise NothingSelectedError(f"{cell.id} has no recipe", fix="name one with --recipe")
    return str(facet["name"]), facet


def _with_recipe(cell: Any, name: str) -> Any:
    import dataclasses

    return dataclasses.replace(cell, recipe=name)


def _locations(matrix: Matrix, runner: str, given: tuple[str, ...]) -> dict[str, str]:
    if runner not in matrix.runners:
        raise InputError(
            f"there is no runner {runner!r}", fix=f"one of: {', '.join(sorted(matrix.runners)) or 'none'}"
        )
    found = {name: value for name, value in matrix.runners[runner].labels.items() if name.isupper()}
    for name, value in os.environ.items():
        if name.startswith(ENVIRONMENT_PREFIX) and name.endswith("_ROOT"):
            found[name.removeprefix(ENVIRONMENT_PREFIX)] = value
    for pair in given:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise InputError(f"--location {pair!r} is not NAME=FOLDER", fix="e.g. DATA_ROOT=/data")
        found[name] = value
    return found


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
