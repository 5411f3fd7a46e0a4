"""The stories of the first three pages of the docs, from the wheel and in folders of other people.

Fetched is only what the index has of verl 0.6.1 and its requirements. The cells are for NPUs, so the checks
that need one are not run.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import actions_runner
from foreign_repository import PATCH, SCRIPT, break_patch, commit, git, patches_repository
from installed_wheel import ROOT, InstalledWheel


def test_a_patch_maintainer(installed: InstalledWheel, tmp_path: Path) -> None:
    mine = patches_repository(tmp_path / "mine")
    planned = installed.run("init", "--dry-run", cwd=mine)
    assert "npu: 1 files, patches of verl" in planned.stdout
    assert not (mine / "matrix.yaml").exists()
    installed.run("init", cwd=mine)
    commit(mine, "npu-matrix")
    first = installed.run("run", "--check", "patches,constraints", cwd=mine)
    assert re.search(r"pass +static +patches mine-", first.stderr)
    assert (mine / "reports/index.html").is_file()
    assert git(mine, "status", "--porcelain") == "", "reports and state are ignored"
    assert "in mine" in installed.run("patches", "list", cwd=mine).stdout

    git(mine, "checkout", "-q", "-b", "broken")
    break_patch(mine)
    commit(mine, "a patch that does not apply")
    gate = ("gate", "--base", "main", "--run", "--run-base", "--impacted", "--check", "patches")
    red = installed.run(*gate, "--awaiting", "unselected", cwd=mine, code=1)
    assert f"at: {PATCH}" in red.stdout
    assert "verl/v0.6.1/0001-timings" in red.stdout

    git(mine, "checkout", "-q", "-b", "innocent", "main")
    (mine / "README").write_text("words\n")
    commit(mine, "innocent")
    green = installed.run(*gate, "--awaiting", "unselected", cwd=mine)
    assert "0 changed keys" in green.stdout
    (mine / PATCH).write_text(f"A comment.\n\n{(mine / PATCH).read_text()}")
    commit(mine, "the same patch, with a comment")
    green = installed.run(*gate, "--awaiting", "unselected", cwd=mine)
    assert "green" in green.stdout


def test_an_engineer_who_brings_up_a_host(installed: InstalledWheel, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("verl==0.6.1\ntorch==2.7.1\ntorch-npu==2.7.1\n")
    installed.run("init", cwd=tmp_path)
    installed.run("run", "--check", "resolve,patches", cwd=tmp_path)
    cell = installed.run("plan", "--json", cwd=tmp_path).stdout
    name = re.search(r'"id": "([a-z0-9-]+)"', cell)
    assert name
    installed.run("lock", name[1], "--export", "dockerfile", "--output", "build", cwd=tmp_path)
    dockerfile = (tmp_path / "build/Dockerfile").read_text()
    assert "FROM" in dockerfile
    patch = "patches/verl/timing-all-gather/0.6.1.patch"
    assert (tmp_path / "build" / patch).read_bytes() == (ROOT / patch).read_bytes(), "a shipped patch"
    assert patch in dockerfile
    script = installed.run("lock", name[1], "--export", "script", cwd=tmp_path).stdout
    assert "torch_npu==2.7.1" in script.replace("torch-npu", "torch_npu")


def test_advice_for_a_host_becomes_a_stack(installed: InstalledWheel, tmp_path: Path) -> None:
    host = ("--soc", "a2", "--cann", "8.5.0", "--driver", "25.5.0", "--no-index")
    stacks = json.loads(installed.run("advise", *host, "--json", cwd=tmp_path).stdout)["stacks"]
    commands = next(one["commands"] for one in stacks if not one["cell"])
    for command, more in zip(commands[:2], ((), ("--check", "constraints")), strict=True):
        installed.run(*shlex.split(command)[1:], *more, cwd=tmp_path)
    assert (tmp_path / "reports/index.html").is_file()


def test_a_ci_owner(installed: InstalledWheel, tmp_path: Path) -> None:
    mine = patches_repository(tmp_path / "mine")
    installed.run("init", cwd=mine)
    commit(mine, "npu-matrix")
    git(mine, "checkout", "-q", "-b", "broken")
    break_patch(mine)
    commit(mine, "broken")
    git(mine, "checkout", "-q", "-b", "script", "main")
    (mine / "scripts/run.sh").write_text(SCRIPT.replace("nnodes=1", "nnodse=1"))
    commit(mine, "a typing mistake in a launch script")
    git(mine, "checkout", "-q", "main")
    flow = actions_runner.load(mine / ".github/workflows/npu-matrix.yml")
    # The checks of the default profile that are quick.
    [gate] = [step for step in flow["jobs"]["npu-matrix"]["steps"] if "gate --base" in step.get("run", "")]
    gate["run"] += " --check patches --awaiting unselected"
    runner = actions_runner.Runner(tmp_path / "ci", mine, {"PYTHONPATH": str(installed.folder)})
    context = {"github.base_ref": "main", "github.event.pull_request.number": "1"}
    broken = runner.job(flow, "npu-matrix", context, revision="origin/broken")
    assert broken.failed == "run what the change affects, and compare it with the base: 1", broken.output
    assert "::error" in broken.output
    script = runner.job(flow, "npu-matrix", context, revision="origin/script")
    assert "nnodse" in script.output
    assert script.failed
