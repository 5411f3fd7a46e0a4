"""`npu-matrix lint` of a folder, and of what a change adds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli.app import app

RUN = "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n={n}\n"


def rules_and_files(*arguments: str) -> set[tuple[str, str]]:
    result = CliRunner().invoke(app, ["lint", *arguments, "--json"], standalone_mode=False)
    assert result.exception is None, result.exception
    return {(one["rule"], Path(one["file"]).name) for one in json.loads(result.stdout)["findings"]}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "old.sh").write_text(RUN.format(n=1))
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_a_diff_has_only_the_findings_that_are_new(checkout: Path) -> None:
    scripts = checkout / "scripts"
    (scripts / "old.sh").write_text("# one line more\n" + RUN.format(n=1))
    (scripts / "new.sh").write_text(RUN.format(n=1))
    every = rules_and_files(str(scripts))
    assert {("GROUP-1", "old.sh"), ("GROUP-1", "new.sh")} <= every
    fresh = rules_and_files(str(scripts), "--diff", "HEAD")
    assert ("GROUP-1", "new.sh") in fresh
    assert not [file for _rule, file in fresh if file == "old.sh"]
    assert rules_and_files(str(scripts / "old.sh"), "--diff", "HEAD") == set()
    assert ("GROUP-1", "new.sh") in rules_and_files(str(scripts / "new.sh"), "--diff", "HEAD")
