"""Templates of CI systems: every placeholder is filled in, and no value can add a command."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from harness.errors import InputError
from harness.workspace.ci.gate_pipelines import PROVIDERS, PipelineOptions, pipeline_file


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_pipeline_is_complete(provider: str) -> None:
    made = pipeline_file(provider, PipelineOptions(branch="release/1.x", package="npu-matrix==9.9"))
    assert not any(f"@{word}@" in made.text for word in ("GATE", "VERL", "BRANCH", "PACKAGE", "AWAITING"))
    assert "npu-matrix==9.9" in made.text
    assert "npu-matrix gate --base" in made.text
    assert "--junit" in made.text
    assert "--code-quality" in made.text
    assert all(line == line.rstrip() for line in made.text.splitlines())
    assert "\t" not in made.text


@pytest.mark.parametrize("provider", ["gitlab", "gitcode"])
def test_a_pipeline_is_yaml_and_its_shell_is_valid(provider: str) -> None:
    data = yaml.safe_load(pipeline_file(provider, PipelineOptions(awaiting="")).text)
    job = data["npu-matrix"] if provider == "gitlab" else data["jobs"]["npu-matrix"]
    steps = job["script"] if provider == "gitlab" else [one["run"] for one in job["steps"] if "run" in one]
    for step in steps:
        subprocess.run(["bash", "-n"], input=step, text=True, check=True)
    assert "--awaiting" not in steps[-1]


@pytest.mark.parametrize("value", ["main; rm -rf /", "$(id)", "a b", "'", '"', "x\ny", ""])
def test_a_value_that_a_shell_would_interpret_is_refused(value: str) -> None:
    for provider in PROVIDERS:
        with pytest.raises(InputError, match="cannot be written into a pipeline"):
            pipeline_file(provider, PipelineOptions(branch=value))
