"""The shell steps of every gate template, run in a clone of somebody else's repository, with a real git server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from git_command import git
from git_server import commit_files, git_server, make_repository
from patched_checkout import added_line, matrix_of_patches, write_patch

from harness.workspace.ci.gate_pipelines import PROVIDERS, PipelineOptions, pipeline_file

ROOT = Path(__file__).parents[2]
#: A launch script with a mistake that no version of verl excuses.
SCRIPT = """\
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    actor_rollout_ref.rollout.n={n} \\
    trainer.n_gpus_per_node=8
"""
SYSTEMS = (*PROVIDERS, "github")


class Project:
    """A foreign repository on a server, whose stack needs a commit of an upstream, and the clone of a CI job."""

    def __init__(self, folder: Path, parsed_code: Path, address: str) -> None:
        shutil.copytree(parsed_code, folder / "cache")
        commit = make_repository(folder / "served" / "verl", {"verl/core.py": "a = 1\n"})
        self.folder, self.origin, self.job = folder, folder / "origin", folder / "job"
        matrix = matrix_of_patches([f"0.7.0.dev0@{commit}"])
        make_repository(self.origin, {"run.sh": SCRIPT.format(n=8), ".gitignore": ".npu-matrix\nreports\n"})
        (self.origin / "matrix.yaml").write_text(
            re.sub(r'repository: "[^"]*"', f'repository: "{address}/verl"', matrix)
        )
        write_patch(self.origin / "patches" / "verl" / "b", added_line("verl/core.py", "a = 1", "b = 1"))
        commit_files(self.origin, {})
        program = folder / "bin" / "npu-matrix"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m harness "$@"\n')
        program.chmod(0o755)

    def patch(self, line: str, **files: str) -> None:
        """Commit the patch for this line of the upstream, and files, to the current branch."""
        (self.origin / "patches" / "verl" / "b" / "all.patch").write_text(
            added_line("verl/core.py", line, "b = 1")
        )
        commit_files(self.origin, files)

    def address(self, address: str) -> None:
        matrix = self.origin / "matrix.yaml"
        matrix.write_text(re.sub(r'repository: "[^"]*"', f'repository: "{address}"', matrix.read_text()))
        commit_files(self.origin, {})

    def change(self) -> None:
        """Start a branch."""
        git(self.origin, "checkout", "-q", "-b", "change")

    def gate(self, system: str) -> tuple[int, str]:
        """Run the steps of the system in a new clone; exit code and output."""
        place = self.job / "repo_workspace" if system == "gitcode" else self.job
        git(self.folder, "clone", "-q", "--branch", "change", str(self.origin), str(place))
        variables = {
            "CI_MERGE_REQUEST_DIFF_BASE_SHA": git(self.origin, "merge-base", "main", "change"),
            "CHANGE_TARGET": "main",
            "WORKSPACE_TMP": str(self.folder / "temp"),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "NPU_MATRIX_CACHE": str(self.folder / "cache"),
            "NPU_MATRIX_FETCH": "true",
        }
        if system == "github":
            script, given = _action_step(self.folder)
            variables |= given
        else:
            script = shell_steps(system)[-1]
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-c", script],
            cwd=self.job,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        self.reports = place / "reports"
        return done.returncode, done.stdout + done.stderr


def shell_steps(system: str) -> list[str]:
    """The shell steps of a template, without the one that installs the program."""
    text = pipeline_file(system, PipelineOptions()).text
    if system == "jenkins":
        return re.findall(r"sh '''(.*?)'''", text, flags=re.DOTALL)
    data = yaml.safe_load(text)
    if system == "gitlab":
        return [*data["npu-matrix"]["before_script"], *data["npu-matrix"]["script"]]
    return [step["run"] for step in data["jobs"]["npu-matrix"]["steps"] if "run" in step]


def _action_step(folder: Path) -> tuple[str, dict[str, str]]:
    step = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"][-1]
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    given = {
        name: str(inputs[match[1]].get("default", ""))
        for name, value in step["env"].items()
        if (match := re.fullmatch(r"\$\{\{ inputs\.([a-z-]+) \}\}", value))
    }
    (folder / "runner").mkdir()
    return step["run"], {
        **given,
        "BASE": "origin/main",
        "RUNNER_TEMP": str(folder / "runner"),
        "GITHUB_OUTPUT": str(folder / "runner" / "output"),
    }


@pytest.fixture
def project(tmp_path: Path, parsed_code: Path) -> Iterator[Project]:
    with git_server(tmp_path / "served") as server:
        yield Project(tmp_path, parsed_code, server.url("").rstrip("/"))


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_broken_patch_is_red_and_the_reports_say_so(project: Project, system: str) -> None:
    project.change()
    project.patch("a = 2")
    code, said = project.gate(system)
    assert code == 1, said
    if system == "github":
        return
    suites = ET.parse(project.reports / "gate-junit.xml").getroot()
    assert len(suites.findall(".//testcase[@name='patches']/failure")) == 1
    (entry,) = json.loads((project.reports / "gate-code-quality.json").read_text())
    assert entry["check_name"] == "patches"
    assert entry["severity"] == "blocker"
    assert (project.reports.parent / entry["location"]["path"]).is_file()


@pytest.mark.parametrize("system", SYSTEMS)
def test_an_innocent_change_on_a_broken_base_is_green(project: Project, system: str) -> None:
    project.patch("a = 2")
    project.change()
    header = project.origin / "patches" / "verl" / "b" / "PATCH"
    header.write_text(header.read_text().replace("Why: a test", "Why: a better reason"))
    project.patch("a = 3")
    code, said = project.gate(system)
    assert code == 0, said


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_script_that_the_change_breaks_is_red(project: Project, system: str) -> None:
    project.change()
    commit_files(project.origin, {"run.sh": SCRIPT.format(n=1)})
    code, said = project.gate(system)
    assert code != 0, said
    assert "GROUP-1" in said


@pytest.mark.parametrize("system", SYSTEMS)
def test_an_upstream_that_is_not_reachable_blocks(project: Project, system: str) -> None:
    project.address("http://127.0.0.1:9/verl")
    project.change()
    project.patch("a = 2")
    code, said = project.gate(system)
    assert code == 4, said
    assert "could not be fetched" in said
