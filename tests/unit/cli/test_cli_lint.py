"""`npu-matrix lint` of a folder, and of what a change adds."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli.app import app
from harness.errors import InputError

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


@pytest.mark.parametrize(
    ("option", "error"),
    [
        (("--verl", "9.9"), "no verl 9.9\n  do:  nearest published: 0.9.0, 0.9.1"),
        (("--verl", "latest"), "verl==latest is not a valid release\n  do:  nearest published: 0.9.1"),
        (("--transformers", "4.99"), "no transformers 4.99\n  do:  nearest published: 4.57.6"),
        (("--vllm-ascend", "0.11.1"), "no vllm-ascend 0.11.1\n  do:  nearest published: 0.11.0"),
        (("--cann", "8.4.0"), "no CANN 8.4.0 is known"),
    ],
)
def test_a_version_that_does_not_exist_names_the_nearest(
    wheels: Any, tmp_path: Path, option: tuple[str, str], error: str
) -> None:
    for name, version in (
        ("verl", "0.9.0"),
        ("verl", "0.9.1"),
        ("transformers", "4.57.6"),
        ("vllm-ascend", "0.11.0"),
    ):
        wheels.add(name, version)
    script = tmp_path / "run.sh"
    script.write_text(RUN.format(n=8))
    result = CliRunner().invoke(app, ["lint", str(script), *option])
    assert isinstance(result.exception, InputError)
    assert error in str(result.exception)


@pytest.mark.parametrize("version", ["8.5.0", "8.3.RC1.alpha002", "9.0.2"])
def test_every_release_of_a_known_series_of_cann_is_taken(tmp_path: Path, version: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(RUN.format(n=8))
    assert CliRunner().invoke(app, ["lint", str(script), "--cann", version]).exception is None


def test_without_an_index_it_says_that_a_version_was_not_looked_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    script = tmp_path / "run.sh"
    script.write_text(RUN.format(n=8))
    result = CliRunner().invoke(app, ["lint", str(script), "--vllm-ascend", "0.11.0"])
    assert result.exception is None
    assert "not reachable, so vllm_ascend 0.11.0 may not exist" in result.stderr


def lint(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["lint", *arguments], standalone_mode=False)
    assert result.exception is None, result.exception
    return int(result.return_value or 0), result.output


def test_a_diff_of_a_folder_does_not_fail_for_scripts_that_the_change_leaves_alone(checkout: Path) -> None:
    (checkout / "README.md").write_text("changed\n")
    assert lint(str(checkout), "--diff", "HEAD") == (0, f"no shell script in {checkout} differs from HEAD\n")
    (checkout / "setup.sh").write_text("echo hello\n")
    assert lint(str(checkout / "scripts"), "--diff", "HEAD")[0] == 0
    (checkout / "scripts" / "old.sh").write_text(RUN.format(n=1) + "# more\n")
    assert "GROUP-1" not in lint(str(checkout), "--diff", "HEAD")[1]


def test_a_folder_without_launch_scripts_has_nothing_to_lint_in_a_change(checkout: Path) -> None:
    (checkout / "scripts" / "old.sh").write_text("echo hello\n")
    assert lint(str(checkout), "--diff", "HEAD")[0] == 0


def test_scripts_in_hidden_folders_are_not_linted(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "run.sh").write_text(RUN.format(n=1))
    assert {file for _rule, file in rules_and_files(str(checkout))} == {"old.sh"}


def git(folder: Path, *command: str) -> str:
    own = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    done = subprocess.run(["git", *own, *command], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_renamed_script_brings_nothing_new(checkout: Path) -> None:
    scripts = checkout / "scripts"
    (checkout / "moved").mkdir()
    git(checkout, "mv", "scripts/old.sh", "moved/renamed.sh")
    assert rules_and_files(str(checkout / "moved" / "renamed.sh"), "--diff", "HEAD") == set()
    assert rules_and_files(str(checkout / "moved"), "--diff", "HEAD") == set()
    assert rules_and_files(str(checkout), "--diff", "HEAD") == set()
    (scripts / "old.sh").write_text(RUN.format(n=1))
    assert {file for _rule, file in rules_and_files(str(scripts), "--diff", "HEAD")} <= {"old.sh"}


def test_a_deleted_script_is_not_missed(checkout: Path) -> None:
    (checkout / "scripts" / "other.sh").write_text(RUN.format(n=8))
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "other")
    (checkout / "scripts" / "old.sh").unlink()
    assert rules_and_files(str(checkout / "scripts"), "--diff", "HEAD") == set()


def test_three_dots_compare_with_the_common_commit(checkout: Path) -> None:
    script = checkout / "scripts" / "old.sh"
    git(checkout, "checkout", "-qb", "change")
    git(checkout, "checkout", "-q", "-")
    main = git(checkout, "rev-parse", "--abbrev-ref", "HEAD")
    script.write_text(RUN.format(n=8))
    git(checkout, "commit", "-qam", "mended on the main branch")
    git(checkout, "checkout", "-q", "change")
    assert ("GROUP-1", "old.sh") in rules_and_files(str(script), "--diff", main)
    assert rules_and_files(str(script), "--diff", f"{main}...") == set()


def test_a_shallow_clone_says_what_to_fetch(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (checkout / "x").write_text("x")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "second")
    first = git(checkout, "rev-parse", "HEAD~1")
    clone = tmp_path_factory.mktemp("clones") / "shallow"
    git(checkout, "clone", "-q", "--depth=1", f"file://{checkout}", str(clone))
    result = CliRunner().invoke(app, ["lint", str(clone / "scripts"), "--diff", first])
    assert isinstance(result.exception, InputError)
    assert "git fetch" in result.exception.problems[0].fix


def test_a_sourced_file_that_changes_brings_findings(checkout: Path) -> None:
    scripts = checkout / "scripts"
    (scripts / "common.sh").write_text("N=8\n")
    (scripts / "run.sh").write_text("source common.sh\n" + RUN.format(n="$N"))
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "sourced")
    (scripts / "common.sh").write_text("N=1\n")
    assert ("GROUP-1", "run.sh") in rules_and_files(str(scripts / "run.sh"), "--diff", "HEAD")


def test_several_scripts_are_linted_and_others_are_skipped(tmp_path: Path) -> None:
    one, two, other = (tmp_path / f"{name}.sh" for name in ("one", "two", "other"))
    one.write_text(RUN.format(n=1))
    two.write_text(RUN.format(n=2))
    other.write_text("echo hello\n")
    assert {("GROUP-1", "one.sh"), ("GROUP-SMALL", "two.sh")} <= rules_and_files(str(one), str(two))
    with pytest.raises(AssertionError, match="starts no training job"):
        rules_and_files(str(one), str(other))
    assert rules_and_files(str(other), "--skip-others") == set()
    assert ("GROUP-1", "one.sh") in rules_and_files(str(one), str(other), "--skip-others")
    result = CliRunner().invoke(app, ["lint", str(other), "--skip-others"], standalone_mode=False)
    assert result.return_value == 0
