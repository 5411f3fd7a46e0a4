"""`matrix migrations` and `matrix retire` from the command line; a branch followed in a real clone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from git_command import commit_all

from harness.cli.app import main
from harness.errors import EXIT_BAD_INPUT, EXIT_OK, EXIT_UNEXPECTED

MATRIX = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, package: verl, repository: "file:///nowhere/a/verl", source: made up}
  python: {title: Python, scheme: python, source: made up}
  device: {title: device, scheme: name, source: made up, values: {sim: {title: simulated}}}
stacks:
  steady:
    title: a row
    source: made up
    axes:
      verl: 0.9.0  # the guide
      python: host
      device: sim
profiles:
  default: {title: all, select: [{stacks: all}]}
migrations:
  moving:
    stack: steady
    title: the next one
    to: {verl: 0.9.1}
    reason: newer
    source: made up
    owner: me
    until: 2099-01-01
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "matrix.yaml").write_text(MATRIX)
    return folder


@pytest.fixture
def command(checkout: Path, capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main(["--root", str(checkout), *arguments])
        seen = capsys.readouterr()
        return int(stopped.value.code or 0), seen.out, seen.err

    return call


def test_nothing_was_asked_yet(command, checkout):
    code, out, _ = command("matrix", "migrations", "--json")
    (found,) = json.loads(out)["migrations"]
    assert code == EXIT_OK
    assert not found["done"]
    assert {step["holds_up"] for step in found["steps"] if step["new"] is None} == {
        "the new row has no outcome yet"
    }
    code, out, _ = command("matrix", "retire", "moving")
    assert code == EXIT_UNEXPECTED
    assert "waits for resolve" in out
    assert (checkout / "matrix.yaml").read_text() == MATRIX


def test_the_edit_is_shown_and_written_only_when_asked(command, checkout):
    code, out, _ = command("matrix", "retire", "moving", "--force", "--dry-run")
    assert code == EXIT_OK
    assert "-      verl: 0.9.0  # the guide\n+      verl: 0.9.1  # the guide\n" in out
    assert (checkout / "matrix.yaml").read_text() == MATRIX
    assert command("matrix", "retire", "moving", "--force")[0] == EXIT_OK
    assert "0.9.0" not in (checkout / "matrix.yaml").read_text()
    assert "0 migrations" in command("matrix", "migrations")[1]


def test_a_migration_that_is_not_there(command):
    code, _, err = command("matrix", "retire", "movin")
    assert code == EXIT_BAD_INPUT
    assert "nearest: moving" in err


def test_a_branch_is_followed_in_a_clone_and_its_row_says_so_where_there_is_none(
    command, checkout, tmp_path, monkeypatch
):
    clone = tmp_path / "mirrors" / "a+verl"
    clone.mkdir(parents=True)
    head = commit_all(clone)
    (checkout / "matrix.yaml").write_text(MATRIX.replace("verl: 0.9.1}", "verl: 0.10.0.dev0@main}"))

    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))
    plan = json.loads(command("plan", "--check", "lint", "--json")[1])
    assert {cell["axes"]["verl"] for cell in plan["cells"]} == {"0.9.0", f"0.10.0.dev0@{head}"}

    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path))
    clone.rename(tmp_path / "elsewhere")
    plan = json.loads(command("plan", "--check", "lint", "--json")[1])
    assert [cell["stack"] for cell in plan["cells"]] == ["steady"]
    (notice,) = plan["notices"]
    assert "matrix.yaml:17: the stack 'moving' is not planned" in notice
