"""The files of a revision, as git would check them out, and the files that differ from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from git_command import commit_all, git

from harness.plan.change.revision import changed_files, extract_revision, resolve_revision


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose checkout to plan is its folder `ours`."""
    root = tmp_path / "repository"
    (root / "ours" / "patches").mkdir(parents=True)
    (root / "vendor").mkdir()
    (root / "vendor" / "x.patch").write_text("one\n")
    (root / "ours" / "patches" / "x.patch").symlink_to("../../vendor/x.patch")
    (root / "ours" / ".gitattributes").write_text("patches export-ignore\n")
    commit_all(root)
    return root


def extracted(root: Path, target: Path) -> Path:
    return extract_revision(root, resolve_revision(root, "HEAD"), target)


def test_links_to_files_elsewhere_in_the_repository_have_their_content_at_that_revision(
    repository: Path, tmp_path: Path
) -> None:
    ours = repository / "ours"
    (repository / "vendor" / "x.patch").write_text("two\n")
    folder = extracted(ours, tmp_path / "base")
    assert folder.name == "ours"
    assert (folder / "patches" / "x.patch").read_text() == "one\n"
    changed = changed_files(ours, resolve_revision(ours, "HEAD"))
    assert changed.tracked == ("../vendor/x.patch",)
    assert changed.untracked == ()


def test_attributes_of_the_checkout_do_not_alter_the_revision(repository: Path, tmp_path: Path) -> None:
    (repository / ".gitattributes").write_text("*.patch text eol=crlf\n")
    folder = extracted(repository / "ours", tmp_path / "base")
    assert (folder / "patches" / "x.patch").read_bytes() == b"one\n"


def test_a_submodule_has_the_commit_that_the_revision_names(repository: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "y.patch").write_text("one\n")
    commit_all(plugin)
    git(repository, "submodule", "add", "-q", str(plugin), "plugin")
    git(repository, "commit", "-q", "-m", "y")
    (repository / "plugin" / "y.patch").write_text("two\n")
    git(repository / "plugin", "commit", "-q", "-a", "-m", "z")
    folder = extracted(repository, tmp_path / "base")
    assert (folder / "plugin" / "y.patch").read_text() == "one\n"
    assert not (folder / "plugin" / ".git").exists()


def test_the_index_and_the_files_of_the_checkout_are_left_alone(repository: Path, tmp_path: Path) -> None:
    (repository / "vendor" / "x.patch").write_text("two\n")
    git(repository, "add", "-A")
    before = (repository / ".git" / "index").read_bytes()
    extracted(repository, tmp_path / "base")
    assert (repository / ".git" / "index").read_bytes() == before
    assert (repository / "vendor" / "x.patch").read_text() == "two\n"
