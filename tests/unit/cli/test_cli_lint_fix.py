"""`npu-matrix lint --fix` and `--show-fixes`: a patch is shown first, and only the named scripts change."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from harness.cli.app import app
from harness.compat.lint.lint_measurements import LintFinding, LintResult
from harness.compat.lint.script_fixes import FixedScript, ScriptFix
from harness.errors import InputError
from harness.workspace.linting.script_fixing import write_fixes

WRONG = b"#!/bin/bash\r\nexport\tTASK_QUEUE_ENABLE=2\r\n# \xc3\xa9 TASK_QUEUE_ENABLE=2\r\n"
RUN = (
    b"python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8"
    b" actor_rollout_ref.rollout.enforce_eager=False"
)


def lint(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, ["lint", *map(str, arguments)], standalone_mode=False)
    assert result.exception is None, result.exception
    return result


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.sh"
    path.write_bytes(WRONG + RUN)
    path.chmod(0o754)
    return path


FIXED = WRONG.replace(b"\tTASK_QUEUE_ENABLE=2", b"\tTASK_QUEUE_ENABLE=1") + RUN


def test_shown_fixes_are_a_patch_that_git_applies(script: Path) -> None:
    shown = lint("run.sh", "--show-fixes")
    assert script.read_bytes() == WRONG + RUN
    assert "1 finding could be fixed with --fix" in shown.stderr
    subprocess.run(["git", "apply", "-"], input=shown.stdout_bytes, cwd=script.parent, check=True)
    assert script.read_bytes() == FIXED


def test_a_fix_keeps_line_ends_permissions_and_all_other_bytes(script: Path) -> None:
    done = lint("run.sh", "--fix")
    assert done.stdout.startswith("--- a/run.sh")
    assert "1 finding fixed" in done.stderr
    assert (script.read_bytes(), script.stat().st_mode & 0o777) == (FIXED, 0o754)
    assert "GRAPH-QUEUE" not in done.stdout.partition("run.sh:")[2]
    assert list(script.parent.iterdir()) == [script]
    again = lint("run.sh", "--fix")
    assert "0 findings fixed" in again.stderr
    assert script.read_bytes() == FIXED


@pytest.mark.parametrize("shape", ["json", "sarif"])
def test_the_patch_does_not_mix_with_a_document(script: Path, shape: str) -> None:
    done = lint("run.sh", "--show-fixes", "--format", shape)
    json.loads(done.stdout)
    assert "+export" in done.stderr


def test_every_script_of_a_folder_is_fixed_but_no_link(script: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.sh"
    folder = tmp_path / "scripts"
    folder.mkdir()
    script.rename(folder / "run.sh")
    (folder / "other.sh").write_bytes(WRONG + RUN)
    lint(folder, "--fix")
    assert (folder / "run.sh").read_bytes() == (folder / "other.sh").read_bytes() == FIXED
    outside.write_bytes(WRONG + RUN)
    (folder / "link.sh").symlink_to(outside)
    (folder / "new.sh").write_bytes(WRONG + RUN)
    refused = CliRunner().invoke(app, ["lint", str(folder), "--fix"], standalone_mode=False)
    assert "link.sh: this script was not fixed\n  why: it is a symbolic link" in str(refused.exception)
    assert (folder / "new.sh").read_bytes() == outside.read_bytes() == WRONG + RUN


def test_a_script_that_changed_meanwhile_is_not_overwritten(script: Path) -> None:
    finding = LintFinding(
        rule="X", severity="error", file="", line=1, column=1, message="", why="", fix="", source=""
    )
    fixed = FixedScript(
        path=script,
        before=b"old",
        fixed=b"new",
        fixes=(ScriptFix(finding=finding, edits=()),),
        rejected=(),
        after=LintResult(findings=(), undecided=()),
    )
    with pytest.raises(InputError, match="was not fixed") as caught:
        write_fixes([fixed], [script])
    assert "changed since" in caught.value.problems[0].why
    assert script.read_bytes() == WRONG + RUN


def test_with_a_diff_only_new_findings_are_fixed(script: Path) -> None:
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=script.parent, check=True)
    new = script.with_name("new.sh")
    new.write_bytes(WRONG + RUN)
    lint(script.parent, "--diff", "HEAD", "--fix")
    assert (script.read_bytes(), new.read_bytes()) == (WRONG + RUN, FIXED)
