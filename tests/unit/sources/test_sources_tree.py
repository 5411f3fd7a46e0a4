from __future__ import annotations

from pathlib import Path

import pygit2
import pytest
from memory_tree import MemoryTree

from harness.errors import InputError
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_mirror
from harness.sources.tree import (
    EXECUTABLE,
    REGULAR,
    SYMLINK,
    DirectoryTree,
    OverlayTree,
    TreeFile,
    blob_id,
    link_above,
    path_problem,
    tree_digest,
)


def folder(root: Path) -> DirectoryTree:
    (root / "pkg" / "__pycache__").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "pkg" / "a.py").write_bytes(b"a\r\n")
    (root / "pkg" / "__pycache__" / "a.pyc").write_bytes(b"x")
    (root / ".git" / "config").write_bytes(b"x")
    (root / "pkg" / "run").write_bytes(b"r")
    (root / "pkg" / "run").chmod(0o755)
    (root / "pkg" / "out").symlink_to("/etc")
    return DirectoryTree(root=root)


def test_a_folder_by_content(tmp_path: Path) -> None:
    tree = folder(tmp_path)
    assert sorted(tree.paths()) == ["pkg/a.py", "pkg/out", "pkg/run"]
    assert [tree.mode(path) for path in ("pkg/a.py", "pkg/out", "pkg/run")] == [REGULAR, SYMLINK, EXECUTABLE]
    assert tree.read("pkg/a.py") == b"a\r\n"
    assert tree.read("pkg/out") == b"/etc"
    assert tree.is_folder("pkg")


@pytest.mark.parametrize("path", ["pkg/out/passwd", "../x", "/etc/passwd", "pkg", "pkg/none", ".git/config"])
def test_nothing_outside_a_folder_is_read(tmp_path: Path, path: str) -> None:
    tree = folder(tmp_path)
    assert tree.mode(path) is None
    with pytest.raises(KeyError):
        tree.read(path)


def test_the_link_above_a_path(tmp_path: Path) -> None:
    tree = folder(tmp_path)
    assert link_above(tree, "pkg/out/deep/file") == "pkg/out"
    assert link_above(tree, "pkg/a.py") is None


def test_equal_contents_have_equal_digests(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    memory = MemoryTree(files={"a": TreeFile(data=b"1")})
    assert tree_digest(DirectoryTree(root=tmp_path)) == tree_digest(memory)
    (tmp_path / "a").chmod(0o755)
    assert tree_digest(DirectoryTree(root=tmp_path)) != tree_digest(memory)


def test_an_overlay_replaces_adds_and_removes() -> None:
    base = MemoryTree(files={"d/a": TreeFile(data=b"1"), "b": TreeFile(data=b"2")})
    tree = OverlayTree(base=base, changes={"d/a": None, "b": TreeFile(data=b"3"), "c/x": TreeFile(data=b"4")})
    assert sorted(tree.paths()) == ["b", "c/x"]
    assert (tree.mode("d/a"), tree.read("b"), tree.is_folder("d"), tree.is_folder("c")) == (
        None,
        b"3",
        False,
        True,
    )
    with pytest.raises(KeyError):
        tree.read("d/a")


@pytest.mark.parametrize(
    "path", ["", "/a", "a//b", "a/../b", ".", "a/.git/x", "a/.GIT", ".git. ", "GIT~1/x", "C:x", "\\a", "a\0b"]
)
def test_paths_that_must_not_be_written(path: str) -> None:
    assert path_problem(path)


@pytest.mark.parametrize("path", ["a/" + "b" * 256, "\u4e2d" * 86, "a/" * 2048 + "b"])
def test_names_no_folder_can_hold_are_refused(path: str) -> None:
    assert path_problem(path)


@pytest.mark.parametrize("path", ["b" * 255, "\u4e2d" * 85, "a/" * 2047 + "b"])
def test_the_longest_names_are_taken(path: str) -> None:
    assert path_problem(path) == ""


@pytest.mark.parametrize("path", ["a", "a/b.py", ".github/x", ".gitignore", "a b/c", "caf\u00e9", "..a/b.."])
def test_paths_that_may_be_written(path: str) -> None:
    assert path_problem(path) == ""


def repository(root: Path) -> tuple[Repository, str]:
    store = pygit2.init_repository(str(root), bare=True)
    inner = store.TreeBuilder()
    for name, data, mode in (
        ("a.py", b"a\r\n", 0o100644),
        ("run", b"r", 0o100755),
        ("link", b"a.py", 0o120000),
    ):
        inner.insert(name, store.create_blob(data), mode)
    top = store.TreeBuilder()
    top.insert("pkg", inner.write(), 0o040000)
    who = pygit2.Signature("a", "a@example.org", 1, 0)
    return Repository(root), str(store.create_commit("refs/heads/main", who, who, "m", top.write(), []))


def test_a_commit_by_content(tmp_path: Path) -> None:
    store, commit = repository(tmp_path)
    tree = store.tree("main")
    assert tree.commit == commit
    assert sorted(tree.paths()) == ["pkg/a.py", "pkg/link", "pkg/run"]
    assert [tree.mode(path) for path in ("pkg/a.py", "pkg/link", "pkg/run", "pkg", "none/x")] == [
        REGULAR,
        SYMLINK,
        EXECUTABLE,
        None,
        None,
    ]
    assert tree.read("pkg/a.py") == b"a\r\n"
    assert tree.is_folder("pkg")
    assert not tree.is_folder("pkg/a.py")
    with pytest.raises(KeyError):
        tree.read("pkg")


@pytest.mark.parametrize("kind", ["heads", "tags"])
@pytest.mark.parametrize("length", [7, 12, 40])
def test_a_branch_or_tag_with_the_name_of_a_commit_does_not_replace_it(
    tmp_path: Path, kind: str, length: int
) -> None:
    store, commit = repository(tmp_path)
    who = pygit2.Signature("a", "a@example.org", 2, 0)
    tree = store.objects[commit].tree.id
    other = store.objects.create_commit(None, who, who, "other", tree, [])
    (tmp_path / "refs" / kind / commit[:length]).write_text(f"{other}\n")
    assert store.commit(commit[:length]) == commit


def test_a_tag_that_looks_like_an_abbreviated_commit_is_found(tmp_path: Path) -> None:
    store, commit = repository(tmp_path)
    store.objects.references.create("refs/tags/20260101", commit)
    assert store.commit("20260101") == commit


def test_old_contents_by_blob_id(tmp_path: Path) -> None:
    store, commit = repository(tmp_path)
    assert store.blob(blob_id(b"a\r\n")) == b"a\r\n"
    assert store.blob(blob_id(b"a\r\n")[:9]) == b"a\r\n"
    assert store.blob(blob_id(b"a\r\n")[:4]) is None
    assert store.blob(commit) is None
    assert store.blob("0" * 40) is None
    assert store.blob("not hexadecimal") is None


@pytest.mark.parametrize("revision", ["none", "0" * 40, "main:pkg", "--upload-pack=x", ""])
def test_an_unknown_revision_is_an_input_error(tmp_path: Path, revision: str) -> None:
    with pytest.raises(InputError, match="not in this repository"):
        repository(tmp_path)[0].tree(revision)


def test_a_folder_that_is_no_repository_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a git repository"):
        Repository(tmp_path).tree("HEAD")


def test_the_mirror_with_the_commit_is_found(tmp_path: Path) -> None:
    _store, commit = repository(tmp_path / "some" / "deep.git")
    pygit2.init_repository(str(tmp_path / "other.git"), bare=True)
    found = find_mirror([tmp_path], commit[:10])
    assert found is not None
    assert found.path.name == "deep.git"
    assert find_mirror([tmp_path], "0" * 40) is None
    assert find_mirror([tmp_path / "none"], commit) is None
