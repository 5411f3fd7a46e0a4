"""The files for CI systems against the schemas that these systems publish."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.matrix.reading.load_matrix import load_matrix
from harness.package import shipped_file
from harness.workspace.adoption.first_files import workflow_text
from harness.workspace.adoption.repository_survey import survey_repository
from harness.workspace.ci.gate_pipelines import PipelineOptions, pipeline_file

pytest.importorskip("check_jsonschema", reason="check-jsonschema is not installed (group `test`)")

ROOT = Path(__file__).parents[3]


def problems(schema: str, *files: Path) -> str:
    """What the schema that check-jsonschema has of a system says about files; "" if they fit."""
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout if done.returncode else ""


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("awaiting", ["npu", ""])
def test_the_pipelines_fit_the_schemas_of_their_systems(awaiting: str, tmp_path: Path) -> None:
    options = PipelineOptions(awaiting=awaiting)
    gitlab = pipeline_file("gitlab", options).text
    assert problems("gitlab-ci", written(tmp_path, "gitlab.yml", gitlab)) == ""
    # GitCode reads the format of GitHub.
    gitcode = pipeline_file("gitcode", options).text
    assert problems("github-workflows", written(tmp_path, "gitcode.yml", gitcode)) == ""
    broken = gitlab.replace("interruptible: true", "interruptible: perhaps")
    assert "interruptible" in problems("gitlab-ci", written(tmp_path, "broken.yml", broken))


def test_the_workflows_and_the_action_fit_the_schemas_of_github(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    written(tmp_path / "scripts", "run.sh", "python3 -m verl.trainer.main_ppo x=1\n")
    shipped = load_matrix(shipped_file("matrix.yaml"))
    made = workflow_text(survey_repository(tmp_path, shipped), shipped)
    assert "lint the launch scripts" in made
    own = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert problems("github-workflows", written(tmp_path, "made.yml", made), *own) == ""
    assert problems("github-actions", ROOT / "action.yml") == ""
