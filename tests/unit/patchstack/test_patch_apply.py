"""The verdicts are compared with git on thousands of random pairs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gitcorpus import NAME, GitBox, GitSays, Pair, mutated, random_pair
from memory_tree import MemoryTree

from harness.patchstack.apply.classify import classify, read_patch
from harness.patchstack.apply.patch_apply import Applied, apply_patch
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.sources.tree import TreeFile

CHUNKS = range(10)
PAIRS = 100


def after(tree: MemoryTree, patch: bytes) -> dict[str, bytes] | None:
    loaded = read_patch("p", patch)
    done = apply_patch(loaded.patch, tree) if loaded.patch else None
    if not isinstance(done, Applied):
        return None
    files = {path: file.data for path, file in tree.files.items()}
    for path, file in done.files.items():
        files.pop(path, None)
        if file is not None:
            files[path] = file.data
    return files


def git_is_wrong(patch: bytes, target: bytes, says: GitSays) -> bool:
    """The two cases in which `patch_apply` is stricter than git on purpose; tests below show them."""
    loaded = read_patch("p", patch)
    hunks = [hunk for file in loaded.patch.files for hunk in file.hunks] if loaded.patch else []
    without_text = any(not hunk.pre and hunk.old_start > 1 for hunk in hunks) and bool(target)
    in_the_middle = any(
        hunk.trailing and not hunk.pre.endswith(b"\n") and hunk.pre + b"\n" in target[:-1] for hunk in hunks
    )
    return says.accepts and (without_text or in_the_middle)


def disagreement(pair: Pair, patch: bytes, says: GitSays) -> str:
    verdict = classify(read_patch("p", patch), pair.tree).verdict
    if verdict.accepted_by_git != says.accepts:
        return f"seed {pair.seed}: {verdict}, git accepts: {says.accepts} {says.message}"
    if says.accepts and after(pair.tree, patch) != says.files:
        return f"seed {pair.seed}: git makes other files of it"
    return ""


@pytest.mark.parametrize("chunk", CHUNKS)
def test_verdict_and_result_equal_those_of_git(chunk: int, tmp_path: Path) -> None:
    box = GitBox(tmp_path / "box")
    for seed in range(chunk * PAIRS, (chunk + 1) * PAIRS):
        pair = random_pair(seed)
        if pair is None:
            continue
        says = box.apply(pair.tree, pair.patch)
        problem = disagreement(pair, pair.patch, says)
        assert not problem or git_is_wrong(pair.patch, pair.tree.files[NAME].data, says), problem


@pytest.mark.parametrize("chunk", CHUNKS)
def test_damaged_patches_are_accepted_and_rejected_as_by_git(chunk: int, tmp_path: Path) -> None:
    box = GitBox(tmp_path / "box")
    for seed in range(chunk * PAIRS, (chunk + 1) * PAIRS):
        pair = random_pair(seed)
        if pair is None:
            continue
        patch = mutated(random.Random(seed + 1_000_000), pair.patch)
        says = box.apply(pair.tree, patch)
        problem = disagreement(pair, patch, says)
        assert not problem or git_is_wrong(patch, pair.tree.files[NAME].data, says), problem


HEAD = b"--- a/%s\n+++ b/%s\n" % (NAME.encode(), NAME.encode())


def test_git_joins_lines_after_old_text_without_a_newline(tmp_path: Path) -> None:
    tree = MemoryTree(files={NAME: TreeFile(data=b"z\na\nb\nc\na\nb\nc\n")})
    patch = HEAD + b"@@ -2,3 +2,3 @@\n a\n-b\n+x\n c\n\\ No newline at end of file\n"
    assert GitBox(tmp_path / "box").apply(tree, patch).files == {NAME: b"z\na\nx\nca\nb\nc\n"}
    assert after(tree, patch) == {NAME: b"z\na\nb\nc\na\nx\nc"}


@pytest.mark.parametrize("line", [0, 1, 2, 9])
def test_git_appends_text_without_context_to_any_file(line: int, tmp_path: Path) -> None:
    tree = MemoryTree(files={NAME: TreeFile(data=b"a\nb\n")})
    patch = HEAD + b"@@ -%d,0 +%d @@\n+x\n" % (line, line + 1)
    says = GitBox(tmp_path / "box").apply(tree, patch)
    assert says.accepts == (line > 1)
    assert says.files == {NAME: b"a\nb\nx\n" if line > 1 else b"a\nb\n"}
    assert classify(read_patch("p", patch), tree).verdict is PatchVerdict.UNSUPPORTED
