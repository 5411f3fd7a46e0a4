"""Looking up commits in upstream repositories, which are folders here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from git_command import git
from test_image_layers import lock

from harness.builds.export.export_formats import EXPORTS
from harness.builds.lock.cell_lock import LockedSource
from harness.builds.lock.commit_trees import add_upstream_tree_ids

# The git configuration of the user must not affect the tests.
ENVIRON = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


class Upstream:
    """A repository with two commits; the first has the tag v1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q")
        self.git("config", "uploadpack.allowFilter", "true")
        self.commits, self.trees = [], []
        for text in ("one", "two"):
            (folder / "file").write_text(text)
            self.git("add", "file")
            self.git("commit", "-q", "-m", text)
            self.commits.append(self.git("rev-parse", "HEAD"))
            self.trees.append(self.git("rev-parse", "HEAD^{tree}"))
        self.git("tag", "-a", "-m", "a release", "v1", self.commits[0])

    def git(self, *argv: str) -> str:
        return git(self.folder, *argv)

    def source(self, commit: str) -> LockedSource:
        return LockedSource(
            package="vllm", version="1", commit=commit, repository=f"file://{self.folder}", env={}
        )


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    return Upstream(tmp_path / "upstream")


def asked(source: LockedSource) -> tuple[LockedSource, tuple[str, ...]]:
    made, told = add_upstream_tree_ids(lock(from_source=(source,)), ENVIRON)
    return made.from_source[0], told


def test_a_commit_or_tag_gets_its_tree_and_first_digits_their_whole_name(upstream: Upstream) -> None:
    (first, second), trees = upstream.commits, upstream.trees
    for named, commit, tree in (
        (first, first, trees[0]),
        (second, second, trees[1]),
        ("v1", "v1", trees[0]),
        (first[:11], first, trees[0]),
    ):
        found, told = asked(upstream.source(named))
        assert (found.commit, found.tree, told) == (commit, tree, ())


def test_what_is_known_is_not_asked_again(upstream: Upstream, tmp_path: Path) -> None:
    known, _told = asked(upstream.source("v1"))
    upstream.folder.rename(tmp_path / "gone")
    assert asked(known) == (known, ())


def test_the_export_says_what_is_open_and_no_more_once_it_is_known(upstream: Upstream) -> None:
    source = upstream.source(upstream.commits[0])
    named = f"their content is not verified: vllm {source.commit}"
    assert named in EXPORTS["script"](lock(from_source=(source,)))
    made, _told = add_upstream_tree_ids(lock(from_source=(source,)), ENVIRON)
    script = EXPORTS["script"](made)
    assert named not in script
    assert f"rev-parse 'HEAD^{{tree}}')\" = {upstream.trees[0]}" in script


@pytest.mark.parametrize("commit", ["0" * 40, "0123456789a", "v2"])
def test_a_commit_that_its_repository_does_not_have_stays_open_and_is_told(
    upstream: Upstream, commit: str
) -> None:
    source = upstream.source(commit)
    found, told = asked(source)
    assert found == source
    assert len(told) == 1
    assert told[0].startswith(f"{source.repository} does not provide {commit}: ")


def test_a_repository_that_does_not_answer_is_told(tmp_path: Path) -> None:
    source = LockedSource(
        package="vllm", version="1", commit="v1", repository=f"file://{tmp_path}/nothing", env={}
    )
    found, told = asked(source)
    assert found == source
    assert f"file://{tmp_path}/nothing does not provide v1" in told[0]


def test_a_branch_with_the_name_of_an_abbreviated_commit_does_not_replace_it(upstream: Upstream) -> None:
    first, second = upstream.commits
    upstream.git("branch", first[:10], second)
    completed, (notice,) = asked(upstream.source(first[:10]))
    assert completed.tree == ""
    assert "a branch or tag has the name of this commit" in notice
