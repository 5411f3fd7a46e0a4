"""Workflows and action.yml: pinned actions, minimal permissions, time limits, no forked code with secrets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.cli.app import COMMANDS

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PIN = re.compile(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40}$")
#: The commit of each action for its release tag.
ACTIONS = {
    "actions/checkout": "08c6903cd8c0fde910a37f88322edcfb5dd907a8",
    "actions/setup-python": "e797f83bcb11b83ae66e0230d6156d7c80228e7c",
    "actions/upload-artifact": "ea165f8d65b6e75b540449e92b4886f43607fa02",
    "actions/download-artifact": "d3f86a106a0bac45b974a628896c90dbdf5c8093",
    "actions/cache/restore": "0057852bfaa89a56745cba8c7296529d2fc39830",
    "actions/cache/save": "0057852bfaa89a56745cba8c7296529d2fc39830",
}


def load(file):
    data = yaml.safe_load(file.read_text())
    return {("on" if key is True else key): value for key, value in data.items()}


WORKFLOWS = {file.stem: load(file) for file in FILES}
JOBS = [(name, job, body) for name, flow in WORKFLOWS.items() for job, body in flow["jobs"].items()]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = [(f"{name}/{job}", step) for name, job, body in JOBS for step in body["steps"]]
STEPS += [("action", step) for step in ACTION["runs"]["steps"]]
named_jobs = pytest.mark.parametrize(
    ("name", "job", "body"), JOBS, ids=[f"{name}-{job}" for name, job, _ in JOBS]
)


def test_the_workflows_are_there():
    assert set(WORKFLOWS) >= {"ci", "patch-gate", "matrix", "nightly", "status-page"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_grants_nothing_by_itself_and_never_runs_twice_at_once(name):
    flow = WORKFLOWS[name]
    assert flow["permissions"] == {}
    assert flow["concurrency"]["group"]
    assert "pull_request_target" not in flow["on"]
    assert "workflow_run" not in flow["on"]


@named_jobs
def test_a_job_is_bounded_and_may_only_read(name, job, body):
    assert 0 < body["timeout-minutes"] <= 720
    writers = {
        "comment": {"pull-requests": "write"},
        "publish": {"contents": "write"},
        "propose": {"contents": "write", "pull-requests": "write"},
    }
    assert body["permissions"] == writers.get(job, {"contents": "read"})


@named_jobs
def test_a_job_on_our_hosts_waits_for_approval_and_never_takes_code_of_a_fork(name, job, body):
    hosted = isinstance(body["runs-on"], str)
    assert hosted == (job != "npu")
    if hosted:
        return
    assert body["environment"] == "npu"
    if "pull_request" in WORKFLOWS[name]["on"]:
        assert "head.repo.full_name == github.repository" in body["if"]
        assert "labels" in body["if"]


def test_no_secret_is_read_and_a_job_that_writes_runs_no_code_of_the_change():
    for file in [*FILES, ROOT / "action.yml"]:
        assert "secrets." not in file.read_text()
    comment = WORKFLOWS["patch-gate"]["jobs"]["comment"]
    assert not any(step.get("uses", "").startswith("actions/checkout") for step in comment["steps"])
    page = WORKFLOWS["status-page"]
    assert set(page["on"]) == {"schedule", "workflow_dispatch"}, "only code of main runs with its token"
    steps = page["jobs"]["publish"]["steps"]
    assert [step["with"]["ref"] for step in steps if "checkout" in step.get("uses", "")] == ["main"]
    assert "refs/heads/status-page:refs/heads/status-page" in steps[-1]["run"]
    assert all("TOKEN" not in step.get("env", {}) for step in steps[:-1]), "only the push has the token"
    nightly = WORKFLOWS["nightly"]
    assert set(nightly["on"]) == {"schedule", "workflow_dispatch"}
    steps = nightly["jobs"]["propose"]["steps"]
    assert [step["with"]["ref"] for step in steps if "checkout" in step.get("uses", "")] == ["main"]
    assert not any("npu-matrix" in step.get("run", "") for step in steps)
    assert all("env" not in step for step in steps[:-1]), "only the push has the token"


def test_every_action_is_pinned_to_a_known_commit():
    for where, step in STEPS:
        if "uses" not in step:
            continue
        assert PIN.fullmatch(step["uses"]), where
        action, _, commit = step["uses"].partition("@")
        assert ACTIONS[action] == commit, where


def test_a_checkout_leaves_no_token_behind():
    for where, step in STEPS:
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, where


def test_files_of_other_jobs_and_comments_lie_outside_of_the_checkout_of_a_change():
    for where, step in STEPS:
        action = step.get("uses", "").partition("@")[0]
        if where.endswith("/comment"):
            continue  # without a checkout
        if action == "actions/download-artifact" or step.get("with", {}).get("name") == "gate":
            assert all("runner.temp" in line for line in step["with"]["path"].splitlines()), where
    assert "edited" in WORKFLOWS["patch-gate"]["on"]["pull_request"]["types"]


def test_scripts_take_what_they_need_from_the_environment_and_are_bash():
    for where, step in STEPS:
        if "run" not in step:
            continue
        assert "${{" not in step["run"], where
        subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
        for command in re.findall(
            r"npu-matrix[\"']?(?: --(?:root|profile) [^ ]+| \"\$\{options\[@\]\}\")* ([a-z][a-z-]+)",
            step["run"],
        ):
            assert command in COMMANDS, (where, command)


def linter(name):
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed here: not linted")


@linter("actionlint")
def test_actionlint_finds_nothing_and_would_find_a_mistake(tmp_path):
    def lint(*files):
        return subprocess.run(["actionlint", *files], capture_output=True, text=True, check=False, cwd=ROOT)

    done = lint(*map(str, FILES))
    assert done.returncode == 0, done.stdout
    bad = tmp_path / "bad.yml"
    bad.write_text(
        "on: push\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n      - run: echo ${{ nosuch.x }}\n"
    )
    assert "nosuch" in lint(str(bad)).stdout


@linter("zizmor")
def test_zizmor_finds_nothing_and_would_find_a_hole(tmp_path):
    def audit(*files):
        command = ["zizmor", "--offline", "--no-progress", "--pedantic", *files]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    done = audit(".github/workflows", "action.yml")
    assert done.returncode == 0, done.stdout
    bad = tmp_path / "bad.yml"
    bad.write_text(FILES[0].read_text().replace("permissions: {}", "permissions: write-all"))
    assert "excessive-permissions" in audit(str(bad)).stdout


def test_the_required_check_is_there_whatever_happened_to_the_shards():
    gate = WORKFLOWS["patch-gate"]["jobs"]["gate"]
    assert gate["if"] == "always()"
    assert set(gate["needs"]) == {"plan", "cheap", "npu"}
    assert "strategy" not in gate


@pytest.fixture
def tools(tmp_path):
    """A PATH with a fake npu-matrix that records its arguments and returns the given exit status."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "npu-matrix"
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$*" >> calls\nexit "${CODE:-0}"\n')
    program.chmod(0o755)
    (folder / "python").symlink_to(sys.executable)

    def run(script, code=0, **environ):
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=tmp_path,
            env={"PATH": f"{folder}:{os.environ['PATH']}", "CODE": str(code), **environ},
            capture_output=True,
            text=True,
            check=False,
        )

    run.calls = lambda: (tmp_path / "calls").read_text().splitlines()
    run.folder = tmp_path
    return run


def step_with(name, job, text):
    return next(step["run"] for step in WORKFLOWS[name]["jobs"][job]["steps"] if text in step.get("run", ""))


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 0), (4, 0), (2, 1), (3, 1), (130, 1)])
def test_a_shard_leaves_judging_to_the_gate_and_stops_at_what_is_no_answer(tools, code, ends):
    script = step_with("patch-gate", "cheap", "npu-matrix run")
    assert tools(script, code=code, CELLS="a-1 b-2").returncode == ends
    assert tools.calls() == ["run --only a-1 --only b-2"]


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_the_gate_ends_as_the_gate_says_and_takes_every_shard(tools, code):
    downloads = tools.folder / "temp" / "shards"
    for shard in ("ledger-cheap-1", "ledger-cheap-2"):
        folder = downloads / shard / ".npu-matrix"
        folder.mkdir(parents=True)
        (folder / "ledger.sqlite3").touch()
    script = step_with("patch-gate", "gate", "npu-matrix gate")
    given = {
        "BASE": "origin/main",
        "AWAITING": "npu",
        "ACCEPT_REMOVED": "",
        "RUNNER_TEMP": str(downloads.parent),
    }
    assert tools(script, code=code, **given).returncode == code
    (call,) = tools.calls()
    assert call.count(f"--merge {downloads}/ledger-cheap-") == 2
    assert "--base origin/main --impacted" in call
    assert "--run-base" in call
    assert "--awaiting npu --github" in call


@pytest.mark.parametrize(("name", "job"), [("patch-gate", "gate"), ("matrix", "conclude")])
@pytest.mark.parametrize(
    ("plan", "npu", "ends"),
    [
        ("success", "success", 0),
        ("success", "skipped", 0),
        ("success", "failure", 4),
        ("success", "cancelled", 4),
        ("success", "", 4),
        ("failure", "skipped", 4),
    ],
)
def test_a_job_on_cards_that_died_is_red_although_nobody_else_could_answer(tools, name, job, plan, npu, ends):
    steps = WORKFLOWS[name]["jobs"][job]["steps"]
    (step,) = [step for step in steps if "NPU" in step.get("env", {})]
    assert step["env"] == {"PLAN": "${{ needs.plan.result }}", "NPU": "${{ needs.npu.result }}"}
    assert "if" not in step
    assert tools(step["run"], PLAN=plan, NPU=npu).returncode == ends


@pytest.mark.parametrize("job", ["hosted", "npu"])
@pytest.mark.parametrize(
    ("judged_later", "code", "ends"), [("1 4", 1, 0), ("4", 1, 1), ("4", 4, 0), ("1 4", 2, 1)]
)
def test_a_failure_without_a_change_is_red_in_the_job_that_finds_it(tools, job, judged_later, code, ends):
    assert "'push' && '1 4' || '4'" in WORKFLOWS["matrix"]["env"]["JUDGED_LATER"]
    (tools.folder / "npu-matrix").symlink_to(tools.folder)
    script = step_with("matrix", job, " run ")
    given = {"CELLS": "a", "JUDGED_LATER": judged_later, "RUNNER_TEMP": str(tools.folder)}
    assert tools(script, code=code, **given).returncode == ends


def test_the_gate_runs_without_any_shard(tools):
    assert tools(step_with("patch-gate", "gate", "npu-matrix gate"), BASE="b").returncode == 0


@pytest.mark.parametrize("code", [0, 1, 3, 4])
def test_the_action_lets_the_gate_run_the_change_and_its_base_and_lints_scripts(tools, code):
    script = ACTION["runs"]["steps"][-1]["run"]
    program = tools.folder / "bin" / "npu-matrix"
    program.write_text(
        '#!/bin/bash\nprintf "%s\\n" "$*" >> calls\ncase "$*" in *lint*) exit 0;; *) exit "$CODE";; esac\n'
    )
    given = {
        "ROOT": ".",
        "BASE": "origin/main",
        "MIRRORS": "clones",
        "CHECKS": "patches",
        "RERUNS": "3",
        "AWAITING": "unselected",
        "ACCEPT_REMOVED": "",
        "SCRIPTS": "examples",
        "VERL": "profile",
        "RUNNER_TEMP": str(tools.folder),
        "GITHUB_OUTPUT": str(tools.folder / "output"),
    }
    assert tools(script, code=code, **given).returncode == code
    gate, lint = tools.calls()
    options = (
        "--base origin/main --run --run-base --impacted --check patches --reruns 3 --awaiting unselected"
    )
    assert gate.startswith(f"--root . --mirrors clones gate {options} --github")
    assert lint.endswith("lint examples --verl profile --diff origin/main --format github")


def test_the_action_is_red_if_only_lint_is(tools):
    script = ACTION["runs"]["steps"][-1]["run"]
    program = tools.folder / "bin" / "npu-matrix"
    program.write_text('#!/bin/bash\ncase "$*" in *lint*) exit 1;; *) exit 0;; esac\n')
    names = ("ROOT", "BASE", "SCRIPTS", "VERL", "MIRRORS", "CHECKS", "RERUNS", "AWAITING", "ACCEPT_REMOVED")
    given = {**dict.fromkeys(names, ""), "SCRIPTS": ".", "RUNNER_TEMP": str(tools.folder)}
    assert tools(script, GITHUB_OUTPUT=str(tools.folder / "output"), **given).returncode == 1


def test_the_action_passes_every_input_and_has_no_default_that_lets_a_key_pass():
    (step,) = [step for step in ACTION["runs"]["steps"] if step.get("id") == "gate"]
    used = set(re.findall(r"inputs\.([a-z-]+)", str(ACTION["runs"])))
    assert used == set(ACTION["inputs"])
    for name in ("awaiting", "accept-removed", "checks"):
        assert ACTION["inputs"][name]["default"] == ""
    assert set(re.findall(r"\$([A-Z_]+)", step["run"])) <= {*step["env"], "RUNNER_TEMP", "GITHUB_OUTPUT"}
