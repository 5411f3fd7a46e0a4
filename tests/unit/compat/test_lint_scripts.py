"""Linting several scripts: of a folder, and in several processes."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from memory_tree import MemoryTree

from harness.compat.lint import lint_scripts, program_findings
from harness.compat.lint.lint_measurements import LintResult
from harness.compat.lint.lint_scripts import lint_file, lint_folder, new_findings
from harness.compat.lint.program_findings import PROGRAM_RULE
from harness.errors import InputError, Location
from harness.sources.packages.archive import open_archive
from harness.sources.tree import Tree, TreeFile

RUN = "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n={n}\n"


def test_a_folder_is_linted_and_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "bad.sh").write_text(RUN.format(n=1))
    (tmp_path / "good.sh").write_text("mapfile A < x\n" + RUN.format(n=8).strip() + ' "${A[@]}"\n')
    (tmp_path / "other.sh").write_text("echo hello\n")
    (tmp_path / "broken.sh").write_text("if true; then\n")
    result = lint_folder(tmp_path, {"verl": "0.9.1"})
    groups = [finding.file for finding in result.findings if finding.rule == "GROUP-1"]
    assert groups == [str(tmp_path / "deep" / "bad.sh")]
    unread = [note.text for note in result.notes if note.unread]
    assert any("broken.sh is not read" in text for text in unread)
    assert any("good.sh:2" in text for text in unread)
    assert "other.sh" not in " ".join(unread)


def test_a_folder_without_jobs_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.sh").write_text("echo hello\n")
    with pytest.raises(InputError, match="no script in this folder"):
        lint_folder(tmp_path, {})


def test_only_findings_that_are_new_remain(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(RUN.format(n=1))
    before = lint_folder(tmp_path, {"verl": "0.9.1"})
    (tmp_path / "a.sh").write_text("# moved\n" + RUN.format(n=1))
    (tmp_path / "b.sh").write_text(RUN.format(n=1))
    fresh = new_findings(lint_folder(tmp_path, {"verl": "0.9.1"}), before)
    assert {Path(finding.file).name for finding in fresh.findings} == {"b.sh"}


SCRIPTS = 12
MODULE = "verl/trainer/main_ppo.py"
MAIN = """\
import hydra
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    from verl.part{n} import check
    check(config)
"""
CHECK = """\
def check(config):
    assert config.trainer.nnodes != {n}, "number {n} is not possible"
"""


@pytest.fixture
def verl(tmp_path: Path) -> Tree:
    """A wheel of verl, in which each script's program reads a file of its own."""
    wheel = tmp_path / "verl-0.9.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("verl/trainer/config/ppo_trainer.yaml", "trainer: {nnodes: 1}\n")
        for n in range(SCRIPTS):
            archive.writestr(f"verl/trainer/main_{n}.py", MAIN.format(n=n))
            archive.writestr(f"verl/part{n}.py", "# filler\n" * 3_000 * n + CHECK.format(n=n))
    return open_archive(wheel)


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    for n in range(SCRIPTS):
        (folder / f"{n:02}.sh").write_text(f"python -m verl.trainer.main_{n} trainer.nnodes={n}\n")
    return folder


CHECKED = """\
def check(config):
    assert config.trainer.nnodes != 2, "2 is not possible"
    assert (os.environ["MODE"], config.trainer.nnodes) != ("fast", 3), "fast is not possible"
    assert config.trainer.scale != 1.5, "1.5 is not possible"
"""


def checked_verl(check: str = CHECKED) -> Tree:
    texts = {
        "verl/trainer/main_ppo.py": MAIN.format(n=""),
        "verl/trainer/config/ppo_trainer.yaml": "trainer: {nnodes: 1, scale: 1}\n",
        "verl/part.py": f"import os\n{check}",
    }
    return MemoryTree(files={path: TreeFile(data=text.encode()) for path, text in texts.items()})


def stops(folder: Path, settings: str, verl: Tree, before: str = "export MODE=slow") -> list[str]:
    """What verl's checks say of a job, with what was stored of others in the cache."""
    script = folder / "run.sh"
    script.write_text(f"{before}\npython -m verl.trainer.main_ppo {settings}\n")
    found = lint_file(script, {"verl": "0.9.1"}, verl, folder / "cache").findings
    alone = lint_file(script, {"verl": "0.9.1"}, verl).findings
    assert found == alone
    return [f"{one.line} {one.message}" for one in found if one.rule == PROGRAM_RULE]


def test_a_program_is_followed_once_with_equal_configurations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verl = checked_verl()
    assert stops(tmp_path, "trainer.nnodes=2", verl) == ["2 verl stops: 2 is not possible"]
    followed = Mock(side_effect=program_findings.follow_program)
    monkeypatch.setattr(program_findings, "follow_program", followed)
    moved = stops(tmp_path, "trainer.nnodes=2", verl, "# a comment\nexport MODE=slow")
    assert moved == ["3 verl stops: 2 is not possible"]
    assert followed.call_count == 1, "only without the cache"


@pytest.mark.parametrize(
    ("settings", "before", "check", "expected"),
    [
        ("trainer.nnodes=2", "export MODE=slow", CHECKED, ["2 is not possible"]),
        ("trainer.nnodes=3", "export MODE=fast", CHECKED, ["fast is not possible"]),
        ("trainer.nnodes=3", "export MODE=slow", CHECKED.replace("!= 2", "!= 3"), ["2 is not possible"]),
        ("trainer.scale=1.5", "export MODE=slow", CHECKED, ["1.5 is not possible"]),
        ("trainer.scale=.inf", "export MODE=slow", CHECKED, []),
    ],
)
def test_another_configuration_variable_or_verl_is_followed_again(
    tmp_path: Path, settings: str, before: str, check: str, expected: list[str]
) -> None:
    assert stops(tmp_path, "trainer.nnodes=3", checked_verl()) == []
    told = stops(tmp_path, settings, checked_verl(check), before)
    assert [one.partition("stops: ")[2] for one in told] == expected


def in_one_process(monkeypatch: pytest.MonkeyPatch, folder: Path, verl: Tree) -> LintResult:
    with monkeypatch.context() as patched:
        patched.setattr(lint_scripts, "PARALLEL_FROM", 1_000)
        return lint_folder(folder, {"verl": "0.9.1"}, verl)


def test_several_processes_find_what_one_finds(
    monkeypatch: pytest.MonkeyPatch, scripts: Path, verl: Tree
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    alone = in_one_process(monkeypatch, scripts, verl)
    assert {finding.file for finding in alone.findings} == {str(one) for one in scripts.iterdir()}
    assert sum("is not possible" in finding.message + finding.why for finding in alone.findings) == SCRIPTS
    for _ in range(3):
        assert lint_folder(scripts, {"verl": "0.9.1"}, verl) == alone


def test_the_scripts_of_a_process_that_was_killed_are_linted_here(
    monkeypatch: pytest.MonkeyPatch, scripts: Path, verl: Tree
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    alone = in_one_process(monkeypatch, scripts, verl)
    here = os.getpid()
    lint = lint_scripts.lint_script

    def killed(*arguments: object) -> LintResult:
        if os.getpid() != here:
            os._exit(9)
        return lint(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(lint_scripts, "lint_script", killed)
    assert lint_folder(scripts, {"verl": "0.9.1"}, verl) == alone


def test_bad_input_that_another_process_meets_is_told(
    monkeypatch: pytest.MonkeyPatch, scripts: Path, verl: Tree
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    here = os.getpid()

    def refused(*_arguments: object) -> LintResult:
        if os.getpid() == here:
            return LintResult(findings=(), undecided=())
        raise InputError(
            "this is damaged", where=Location(Path("verl.whl"), 3), why="cut off", fix="fetch it"
        )

    monkeypatch.setattr(lint_scripts, "lint_script", refused)
    with pytest.raises(InputError, match="this is damaged") as error:
        lint_folder(scripts, {"verl": "0.9.1"}, verl)
    (problem,) = error.value.problems
    assert (problem.why, problem.fix) == ("cut off", "fetch it")
