"""`ci` writes the file of a CI system once."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.app import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


def test_the_file_is_written_where_the_system_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = run(capsys, "ci", "gitcode", "--branch", "master")
    assert code == 0
    assert "commit it" in said
    text = (tmp_path / ".gitcode" / "workflows" / "npu-matrix.yml").read_text()
    assert 'branches: ["master"]' in text
    code, said = run(capsys, "ci", "gitcode")
    assert code == 2
    assert "exists already" in said
    assert run(capsys, "ci", "gitcode", "--force")[0] == 0


def test_a_file_can_be_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = run(capsys, "ci", "jenkins", "--print")
    assert code == 0
    assert said.startswith("// Made by")
    assert list(tmp_path.iterdir()) == []
