"""`recipe render` and `lint` share one model of a launch: what one writes, the other reads."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from memory_tree import MemoryTree

from harness.cli.app import app
from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.job_settings import JobSettings
from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_check import lint_job
from harness.compat.lint.lint_scripts import lint_paths
from harness.convergence.recipes.recipe_launch import Launch, render
from harness.convergence.recipes.recipe_script import script_text, shell_word
from harness.errors import InputError
from harness.matrix.model.cell import Cell
from harness.package import IMPORT_ROOT
from harness.settings import load_settings
from harness.sources.tree import REGULAR, TreeFile
from harness.workspace.planning.open_plan import open_matrix
from harness.workspace.planning.recipe_selection import known_errors, recipe_facet, script_facet

SETTINGS = load_settings({}, {}, IMPORT_ROOT)
MATRIX = open_matrix(SETTINGS)
CELLS = {cell.recipe: cell for cell in MATRIX.all_cells if cell.recipe}
FACETS = {name: recipe_facet(SETTINGS, MATRIX, cell, None)[1] for name, cell in CELLS.items()}
WITH_RECIPE = [cell for cell in MATRIX.all_cells if cell.recipe]
ROWS = [cell for cell in WITH_RECIPE if not FACETS[cell.recipe]["entry"].endswith(".sh")]
TRAINING = sorted(name for name, facet in FACETS.items() if not facet["entry"].endswith(".sh"))


def launched(facet: Any, **locations: str) -> Launch:
    return render(facet, locations=locations, options=JobSettings.from_facet(facet).options)


def read_again(name: str, launch: Launch) -> JobSettings:
    script = parse_script(script_text(name, launch), "run.sh")
    assert not [note for note in script.notes if note.unread]
    [job] = script.jobs
    return job


@pytest.mark.parametrize("name", TRAINING)
def test_a_rendered_recipe_is_read_as_the_same_job(name: str) -> None:
    facet = FACETS[name]
    before, after = JobSettings.from_facet(facet), read_again(name, launched(facet))
    assert (after.entry, after.options) == (before.entry, before.options)
    assert (after.nodes, after.cards) == (before.nodes, before.cards)
    assert {key: value.text for key, value in after.overrides.items()} == {
        key: value.text for key, value in before.overrides.items()
    }
    assert (after.added, after.removed) == (before.added, before.removed)
    assert {key: value.text for key, value in after.env.items()} == {
        key: value.text for key, value in before.env.items()
    }


@pytest.mark.parametrize("name", TRAINING)
def test_a_script_is_rendered_as_the_recipe_that_wrote_it(name: str) -> None:
    launch = launched(FACETS[name])
    again = launched(read_again(name, launch).as_facet())
    assert (again.argv, again.submit, again.unknown) == (launch.argv, launch.submit, launch.unknown)
    assert {one.name: one.value for one in again.environment} == {
        one.name: one.value for one in launch.environment
    }
    assert script_text(name, launched(read_again(name, again).as_facet())) == script_text(name, again)


@pytest.mark.parametrize("cell", ROWS, ids=lambda cell: cell.id)
def test_lint_finds_the_same_in_a_recipe_and_in_its_script(cell: Cell) -> None:
    name, versions = cell.recipe, cell.axes
    recipe = JobSettings.from_facet({**FACETS[name], "facts": {}})
    script = read_again(name, launched(FACETS[name]))
    found = [
        {(one.rule, one.message) for one in lint_job(job, versions).findings} for job in (recipe, script)
    ]
    # A recipe names its model, which a script only implies.
    assert {rule for rule, _ in found[0] ^ found[1]} <= {"MEM-WEIGHTS", "MEM-TRAIN"}


@pytest.mark.parametrize("cell", WITH_RECIPE, ids=lambda cell: cell.id)
def test_lint_has_no_error_that_the_rendered_script_does_not_tell(cell: Cell, tmp_path: Path) -> None:
    facet = FACETS[cell.recipe]
    options = JobSettings.from_facet(facet).options
    problems = known_errors(facet, cell.axes)
    launch = render(facet, locations={}, options=options, known_problems=problems)
    script = tmp_path / "run.sh"
    script.write_text(script_text(cell.recipe, launch))
    found = lint_paths([script], cell.axes, None, skip_others=False).findings
    errors = {one.rule for one in found if one.severity == "error"}
    assert {rule for rule in errors if f"({rule})" not in script.read_text()} == set()
    assert {rule for rule in errors if rule == "HOST-CARDS"} == (
        {"HOST-CARDS"} if cell.recipe == "gspo-qwen25-3b" else set()
    )


def test_a_configuration_that_the_program_of_a_recipe_does_not_find_is_an_error() -> None:
    """`render` once wrote this for DAPO with Megatron, whose program has a folder of its own."""
    files = {
        "recipe/dapo/main_dapo.py": "@hydra.main(config_path='config', config_name='dapo_trainer')\ndef main(c): 1\n",
        "recipe/dapo/config/dapo_trainer.yaml": "a: 1\n",
        "verl/trainer/config/ppo_megatron_trainer.yaml": "a: 1\n",
    }
    tree = MemoryTree(
        files={name: TreeFile(data=text.encode(), mode=REGULAR) for name, text in files.items()}
    )
    found = {}
    with VerlConfiguration(tree).unpacked() as configuration:
        for path in ("config", "../../verl/trainer/config"):
            facet = {
                "name": "x",
                "entry": "recipe.dapo.main_dapo",
                "overrides": {"a": 2},
                "config": "ppo_megatron_trainer",
                "config_path": path,
            }
            job = JobSettings.from_facet(facet)
            found[path] = lint_job(job, {}, configuration=configuration).findings
    assert [one.rule for one in found["config"] if one.severity == "error"] == ["NO-PROGRAM"]
    assert not [one for one in found["../../verl/trainer/config"] if one.severity == "error"]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=20))
def test_a_word_is_what_bash_reads(text: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"printf %s {shell_word(text + '${PLACE}')}"],
        env={"PLACE": "/d a"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == text + "/d a"


def test_a_script_with_values_of_a_run_is_no_recipe(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.nnodes=$(nproc)\n"
    )
    with pytest.raises(InputError, match="cannot be part of a recipe"):
        script_facet(script)


def test_the_command_renders_a_script_and_reads_it_again(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(
            app,
            ["--root", str(IMPORT_ROOT), "recipe", "render", "verl-0-9-0", *arguments],
            standalone_mode=False,
        )
        assert result.exception is None, result.exception
        return result.stdout

    script = tmp_path / "quickstart"
    script.write_text(run("--script"))
    assert run("--script", "--from-script", str(script)) == script.read_text()
