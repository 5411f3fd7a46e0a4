"""Folders of mirrors: links are followed, and a folder without repositories is named."""

from __future__ import annotations

from pathlib import Path

import pygit2
import pytest
from git_command import commit_all, git
from git_server import make_repository

from harness.settings import load_settings
from harness.sources.git.mirrors import (
    find_clone,
    find_mirror,
    find_source,
    git_folders,
    mirror_folders,
    mirrors_problem,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    repository = pygit2.init_repository(str(tmp_path / "store" / "verl.git"), bare=True)
    author = pygit2.Signature("a", "a@example.org", 0, 0)
    tree = repository.TreeBuilder().write()
    repository.create_commit("refs/heads/main", author, author, "m", tree, [])
    return tmp_path / "store"


def head_of(store: Path) -> str:
    repository = pygit2.Repository(str(store / "verl.git"))
    return str(repository.references["refs/heads/main"].target)


def mirrors_of(tmp_path: Path) -> Path:
    (tmp_path / "mirrors").mkdir()
    return tmp_path / "mirrors"


def test_a_link_to_a_clone_is_followed(store: Path, tmp_path: Path) -> None:
    mirrors = mirrors_of(tmp_path)
    (mirrors / "verl-project").mkdir()
    (mirrors / "verl-project" / "verl.git").symlink_to(store / "verl.git")
    found = find_mirror([mirrors], head_of(store))
    assert found is not None
    assert found.path == mirrors / "verl-project" / "verl.git"
    assert find_clone([mirrors], "https://example.org/verl-project/verl") is not None


def test_a_link_to_a_folder_of_clones_and_a_link_as_the_folder_are_followed(
    store: Path, tmp_path: Path
) -> None:
    mirrors = mirrors_of(tmp_path)
    (mirrors / "all").symlink_to(store)
    (tmp_path / "link").symlink_to(mirrors)
    for folder in (mirrors, tmp_path / "link"):
        assert find_mirror([folder], head_of(store)) is not None
        assert mirrors_problem([folder]) == ""


def test_circles_end_and_one_repository_is_found_once(store: Path, tmp_path: Path) -> None:
    mirrors = mirrors_of(tmp_path)
    (mirrors / "self").symlink_to(mirrors)
    (mirrors / "up").symlink_to(tmp_path)
    for name in ("one", "two"):
        (mirrors / name).symlink_to(store / "verl.git")
    assert len(list(git_folders(mirrors))) == 1


def test_a_folder_in_which_nothing_can_be_found_says_why(tmp_path: Path) -> None:
    mirrors = mirrors_of(tmp_path)
    (tmp_path / "file").write_text("")
    assert "does not exist" in mirrors_problem([tmp_path / "absent"])
    assert "but a file" in mirrors_problem([tmp_path / "file"])
    assert "has no git repository" in mirrors_problem([mirrors])
    (mirrors / "notes").mkdir()
    assert "has no git repository" in mirrors_problem([mirrors])
    (mirrors / "verl.git").symlink_to(tmp_path / "gone")
    assert "the link verl.git leads nowhere" in mirrors_problem([mirrors])


def test_the_commits_of_the_checkout_are_found_in_itself_and_in_its_worktrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = tmp_path / "my fork"
    commit = make_repository(fork, {"verl/core.py": "a = 1\n"})
    git(fork, "worktree", "add", "-q", str(tmp_path / "tree"))
    (fork / "npu").mkdir()
    for folder in (fork, fork / "npu", tmp_path / "tree"):
        for name, value in load_settings({}, {}, folder).exported().items():
            monkeypatch.setenv(name, value)
        found = find_mirror(mirror_folders(), commit)
        assert found is not None
        assert found.tree(commit).read("verl/core.py") == b"a = 1\n"
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "absent"))
    monkeypatch.delenv("NPU_MATRIX_FETCHED_MIRRORS")
    assert "does not exist" in mirrors_problem(mirror_folders())


def test_a_tag_is_found_in_clones_of_its_own_repository_only(tmp_path: Path) -> None:
    for name in ("other", "mine"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "setup.py").write_text(name)
        commit = commit_all(folder)
        git(folder, "tag", "v1")
    git(tmp_path / "mine", "remote", "add", "origin", "https://example.org/team/Project.git")
    found = find_source([tmp_path], "v1", "https://other.example/team/project")
    assert found is not None
    assert found.path.name == "mine"
    assert find_source([tmp_path], "v1", "https://example.org/team/else") is None
    assert find_source([tmp_path], commit, "https://example.org/team/else") is not None
    assert find_source([tmp_path], "", "https://example.org/team/Project.git") is None
