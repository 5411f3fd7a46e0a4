"""The verdicts against git itself, on thousands of random pairs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from gitcorpus import NAME, GitBox, GitSays, Pair, mutated, random_pair

from harness.patchstack.apply import Applied, apply_patch
from harness.patchstack.classify import classify, read_patch
from harness.sources.tree import MemoryTree

CHUNKS = range(10)
PAIRS = 100


def after(tree: MemoryTree, patch: bytes) -> dict[str, bytes] | None:
    readable = read_patch("p", patch)
    done = apply_patch(readable.patch, tree) if readable.patch else None
    if not isinstance(done, Applied):
        return None
    files = {path: file.data for path, file in tree.files.items()}
    for path, file in done.files.items():
        files.pop(path, None)
        if file is not None:
            files[path] = file.data
    return files


def git_is_wrong(patch: bytes, target: bytes) -> bool:
    """Git's known faults: it places hunks without context, and joins lines at a text without a final newline."""
    readable = read_patch("p", patch)
    hunks = [hunk for file in readable.patch.files for hunk in file.hunks] if readable.patch else []
    without_context = any(not hunk.pre for hunk in hunks) and bool(target)
    return without_context or any(hunk.pre and not hunk.pre.endswith(b"\n") for hunk in hunks)


def disagreement(pair: Pair, patch: bytes, says: GitSays) -> str:
    verdict = classify(read_patch("p", patch), pair.tree).verdict
    if verdict.accepted_by_git != says.accepts:
        return f"seed {pair.seed}: {verdict}, git accepts: {says.accepts} {says.message}"
    if says.accepts and after(pair.tree, patch) != says.files:
        return f"seed {pair.seed}: git makes other files of it"
    return ""


@pytest.mark.parametrize("chunk", CHUNKS)
def test_verdict_and_result_are_those_of_git(chunk: int, tmp_path: Path) -> None:
    box = GitBox(tmp_path / "box")
    for seed in range(chunk * PAIRS, (chunk + 1) * PAIRS):
        pair = random_pair(seed)
        if pair is None:
            continue
        problem = disagreement(pair, pair.patch, box.apply(pair.tree, pair.patch))
        assert not problem or git_is_wrong(pair.patch, pair.tree.files[NAME].data), problem


@pytest.mark.parametrize("chunk", CHUNKS)
def test_broken_patches_are_accepted_and_refused_as_by_git(chunk: int, tmp_path: Path) -> None:
    box = GitBox(tmp_path / "box")
    for seed in range(chunk * PAIRS, (chunk + 1) * PAIRS):
        pair = random_pair(seed)
        if pair is None:
            continue
        patch = mutated(random.Random(seed + 1_000_000), pair.patch)
        problem = disagreement(pair, patch, box.apply(pair.tree, patch))
        assert not problem or git_is_wrong(patch, pair.tree.files[NAME].data), problem
