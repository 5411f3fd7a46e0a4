"""Shell completion knows the cells, checks and profiles of the matrix of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from harness.cli.app import app

MATRIX = """\
format: 1
axes:
  verl: {title: verl, scheme: pep440, source: s, package: verl}
stacks:
  mine: {title: my stack, source: s, axes: {verl: 0.9.1}}
profiles:
  default: {title: t, select: [{stacks: all}]}
  nightly: {title: t, select: [{stacks: all}]}
"""


@pytest.fixture
def complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def words(*arguments: str) -> list[str]:
        *before, last = arguments
        shell = ShellComplete(app, {}, "npu-matrix", "_NPU_MATRIX_COMPLETE")
        return [item.value for item in shell.get_completions(list(before), last)]

    return words


def test_cells_checks_and_profiles_of_this_folder(complete, tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    assert complete("explain", "") == ["mine"]
    assert complete("run", "--only", "m") == ["mine"]
    assert complete("run", "--only", "other,m") == ["other,mine"]
    assert complete("--profile", "n") == ["nightly"]
    assert complete("gate", "--check", "reso") == ["resolve"]
    assert complete("run", "--check", "resolve,pat") == ["resolve,patches"]


def test_the_shipped_matrix_where_there_is_none(complete) -> None:
    assert "gspo-async" in complete("lock", "gspo-")
    assert "full" in complete("--profile", "")


def test_a_damaged_matrix_gives_no_error(complete, tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text("format: [")
    assert complete("explain", "") == []
    assert complete("run", "--only", "") == []
