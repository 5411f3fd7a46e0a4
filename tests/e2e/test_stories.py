"""The stories of the first three pages of the docs, from the wheel and in folders of other people.

Fetched is only what the index has of verl 0.6.1 and its requirements. The cells are for NPUs, so the checks
that need one are not run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import actions_runner
from installed_wheel import ROOT, InstalledWheel

PATCH = "npu/v0.6.1/0001-timings.patch"
TARGET = "timing_tensor = torch.tensor(timing, "
SCRIPT = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.nnodes=1\n"


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    return subprocess.run(
        ["git", *who, "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)


def patches_repository(folder: Path) -> Path:
    """A repository with a git format-patch folder for verl 0.6.1, a pin and a launch script."""
    (folder / PATCH).parent.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    shutil.copy(ROOT / "patches/verl/timing-all-gather/0.6.1.patch", folder / PATCH)
    (folder / "requirements.txt").write_text("verl==0.6.1\n")
    (folder / "scripts").mkdir()
    (folder / "scripts/run.sh").write_text(SCRIPT)
    commit(folder, "what we have")
    return folder


def break_patch(folder: Path) -> None:
    text = (folder / PATCH).read_text()
    assert TARGET in text
    (folder / PATCH).write_text(text.replace(TARGET, "timing_vector = torch.tensor(timing, "))


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
