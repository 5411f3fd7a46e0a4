"""The hooks of this repository as pre-commit installs and runs them in another repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from git_command import git

pytest.importorskip("pre_commit", reason="pre-commit is not installed (group `test`)")

ROOT = Path(__file__).parents[2]
SCRIPT = """\
export TASK_QUEUE_ENABLE=2
python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 \\
  actor_rollout_ref.rollout.enforce_eager=False
"""
CONFIGURATION = """\
repos:
- repo: {root}
  rev: {commit}
  hooks:
  - id: npu-matrix-lint
  - id: npu-matrix-lint-fix
  - id: npu-matrix-patches
"""


def pre_commit(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PYTHON"))
    }
    return subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files", *arguments],
        cwd=folder,
        env={**environment, "PRE_COMMIT_HOME": str(folder.parent / "pre-commit")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.timeout(900)
def test_the_hooks_run_in_another_repository(tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit = git(ROOT, "rev-parse", "HEAD").strip()
    (folder / ".pre-commit-config.yaml").write_text(CONFIGURATION.format(root=ROOT, commit=commit))
    script, other = folder / "run.sh", folder / "other.sh"
    script.write_text(SCRIPT)
    other.write_text("echo this starts no job\n")
    git(folder, "add", "-A")

    found = pre_commit(folder, "npu-matrix-lint")
    assert "run.sh:1:8: error GRAPH-QUEUE" in found.stdout, found.stdout + found.stderr
    assert "other.sh" not in found.stdout

    fixed = pre_commit(folder, "npu-matrix-lint-fix")
    assert "files were modified by this hook" in fixed.stdout
    assert script.read_text() == SCRIPT.replace("ENABLE=2", "ENABLE=1")

    (folder / "patches" / "verl" / "broken").mkdir(parents=True)
    (folder / "patches" / "verl" / "series").write_text("broken\n")
    (folder / "patches" / "verl" / "broken" / "x.patch").write_text("no patch\n")
    git(folder, "add", "-A")
    patches = pre_commit(folder, "npu-matrix-patches")
    assert patches.returncode != 0
    assert "patches/verl/series:1: there is no broken/PATCH" in patches.stdout
