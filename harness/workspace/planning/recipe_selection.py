"""The recipe of a command, with its overrides and the folders of its locations."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.launch_script import read_script
from harness.compat.lint.lint_check import lint_job
from harness.convergence.recipes.recipe_launch import Launch, render
from harness.errors import InputError, NothingSelectedError
from harness.matrix.model.cell import Cell
from harness.matrix.version_matrix import Matrix
from harness.plan.keys.facets import facet_values
from harness.settings import ENVIRONMENT_PREFIX, Settings
from harness.sources.git.mirrors import find_mirror, mirror_folders
from harness.sources.tree import Tree
from harness.workspace.planning.open_plan import facet_inputs
from harness.workspace.planning.plan_selection import unknown_name


def override_settings(overrides: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The overrides with the changes of --set. A leading `+` (Hydra) is ignored when names are compared."""
    found = dict(overrides)
    for pair in changes:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip("+"):
            raise InputError(
                f"--set {pair!r} is not KEY=VALUE", fix="name an override, e.g. trainer.total_epochs=1"
            )
        existing = next((name for name in found if name.lstrip("+") == key.lstrip("+")), key)
        found[existing] = value
    return found


def mirrored_verl(versions: Mapping[str, str]) -> Tree | None:
    """The files of the commit of verl, if a clone on this machine has it; nothing is downloaded."""
    commit = versions.get("verl", "").partition("@")[2]
    repository = find_mirror(mirror_folders(), commit) if commit else None
    return repository.tree(commit) if repository else None


def known_errors(
    facet: Mapping[str, Any], versions: Mapping[str, str], verl: Tree | None = None
) -> list[str]:
    """Lint errors of the unchanged recipe for these versions; verl: its files, which rules read too."""
    with nullcontext() if verl is None else VerlConfiguration(verl).unpacked() as configuration:
        findings = lint_job(JobSettings.from_facet(facet), versions, configuration=configuration).findings
    return [f"{one.message} ({one.rule}): {one.fix}" for one in findings if one.severity == "error"]


def cell_launch(settings: Settings, matrix: Matrix, cell: Cell) -> Launch | None:
    """The job of the recipe of a cell, with its scaled-down twin; None if it has no recipe."""
    facet = facet_values(cell, ("recipe",), facet_inputs(settings, matrix))["recipe"]
    if facet is None:
        return None
    options = JobSettings.from_facet(facet).options
    return render(facet, locations={}, options=options, known_problems=known_errors(facet, cell.axes))


def recipe_facet(
    settings: Settings, matrix: Matrix, cell: Any, other: str | None
) -> tuple[str, Mapping[str, Any]]:
    """The name and the facet of the recipe of a cell, or of the recipe `other`."""
    if other is not None:
        if other not in matrix.recipes:
            raise unknown_name("recipe", other, sorted(matrix.recipes))
        cell = _with_recipe(cell, other)
    facet = facet_values(cell, ("recipe",), facet_inputs(settings, matrix))["recipe"]
    if facet is None:
        raise NothingSelectedError(f"{cell.id} has no recipe", fix="name one with --recipe")
    return str(facet["name"]), facet


def script_facet(script: Path) -> tuple[str, Mapping[str, Any]]:
    """The name and the facet of the only job that a launch script starts."""
    jobs = read_script(script).jobs
    if len(jobs) > 1:
        places = ", ".join(str(job.where) for job in jobs)
        raise InputError(
            f"{script} starts {len(jobs)} jobs",
            why=f"they are at {places}",
            fix="pass a script with one of them",
        )
    facet = jobs[0].as_facet()
    return str(facet["name"]), facet


def _with_recipe(cell: Any, name: str) -> Any:
    return dataclasses.replace(cell, recipe=name)


def recipe_locations(matrix: Matrix, runner: str, given: tuple[str, ...]) -> dict[str, str]:
    """Location -> folder: from `given` (--location), the environment, or the labels of the runner."""
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
