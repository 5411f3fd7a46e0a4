"""The revision of a run is recorded without the git command."""

from __future__ import annotations

from pathlib import Path

import pygit2
import pytest

from harness.plan.change.revision import checkout_revision


@pytest.mark.parametrize("path", ["/nonexistent", ""])
def test_the_revision_is_read_without_the_git_command(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checkout_revision(tmp_path) == ""
    repository = pygit2.init_repository(str(tmp_path / "checkout"))
    folder = tmp_path / "checkout"
    (folder / "file").write_text("one")
    repository.index.add("file")
    repository.index.write()
    author = pygit2.Signature("a", "a@example.org", 0, 0)
    commit = str(repository.create_commit("HEAD", author, author, "m", repository.index.write_tree(), []))
    with_git = checkout_revision(folder)
    monkeypatch.setenv("PATH", path)
    assert checkout_revision(folder) == commit == with_git
    (folder / "untracked").write_text("")
    assert checkout_revision(folder) == commit
    (folder / "file").write_text("two")
    assert checkout_revision(folder) == f"{commit}+"
    assert checkout_revision(tmp_path) == ""


def test_a_git_command_that_cannot_be_started_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_bytes(b"\x7fELF no program")
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert checkout_revision(tmp_path) == ""
