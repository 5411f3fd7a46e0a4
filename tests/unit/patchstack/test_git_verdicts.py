"""Every kind of change that git can write: the verdict is that of `git apply --check`, or `unsupported`."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator

import pytest
from git_diffs import GitDiff, GitDiffs
from gitcorpus import mutated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_tree import MemoryTree

from harness.outcome import Status
from harness.patchstack.apply.classify import classify, read_patch
from harness.patchstack.apply.patch_verdict import ClassifiedPatch, PatchVerdict
from harness.patchstack.checks import judge
from harness.patchstack.patch_measurements import PatchesMeasured
from harness.sources.tree import SYMLINK, TreeFile

#: The verdicts on patches that git may apply: by its own rules, or to another place than they were written for.
BY_GIT_ONLY = {PatchVerdict.UNSUPPORTED, PatchVerdict.MISPLACED}
STRICT = {PatchVerdict.UNSUPPORTED, PatchVerdict.CORRUPT, PatchVerdict.UNSAFE}


@pytest.fixture(scope="module")
def diffs(tmp_path_factory: pytest.TempPathFactory) -> GitDiffs:
    return GitDiffs(tmp_path_factory.mktemp("diffs"))


def verdict_on(diff: GitDiff) -> ClassifiedPatch:
    return classify(read_patch("p", diff.patch), diff.target)


def contradiction(diffs: GitDiffs, diff: GitDiff, *, damaged: bool) -> str:
    """How the verdict contradicts git's, or ""."""
    found = verdict_on(diff)
    accepted, message = diffs.accepts(diff)
    if found.verdict.accepted_by_git != accepted and not (
        accepted and found.verdict in (STRICT if damaged else {PatchVerdict.UNSUPPORTED})
    ):
        return f"{found.verdict} {found.reasons}, git accepts: {accepted} {message}"
    if found.verdict is PatchVerdict.ALREADY_UPSTREAM and not any(
        "line endings" in why for why in found.reasons
    ):
        undone, message = diffs.accepts(diff, "-R")
        return "" if undone else f"{found.verdict} {found.reasons}, but git cannot undo it: {message}"
    return ""


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_the_verdict_on_any_diff_of_git_is_that_of_git_or_unsupported(diffs: GitDiffs, seed: int) -> None:
    diff = diffs.random(seed)
    assert diff is None or not contradiction(diffs, diff, damaged=False), (diff.options, diff.patch)


@pytest.mark.parametrize("seed", [151, 333, 353, 429, 1085, 1371, *range(2000, 2060)])
def test_no_damaged_diff_is_called_applicable_upstream_or_conflicting_against_git(
    diffs: GitDiffs, seed: int
) -> None:
    diff = diffs.random(seed)
    if diff is None or b"@@" not in diff.patch:
        return
    damaged = dataclasses.replace(diff, patch=mutated(random.Random(seed), diff.patch))
    assert not contradiction(diffs, damaged, damaged=True)


def different_files(diffs: GitDiffs, diff: GitDiff) -> str:
    """What differs between the files here and those that git writes, or ""."""
    found = verdict_on(diff)
    expected = diffs.applied(diff)
    if not found.verdict.applies:
        return "" if expected is None or found.verdict in BY_GIT_ONLY else f"git applies it: {found}"
    files = {**diff.target.files, **found.files}
    here = {path: file for path, file in files.items() if file is not None}
    return "" if here == expected else f"{found.verdict}: {sorted(here)}, git has {sorted(expected or {})}"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_a_series_in_one_patch_has_the_files_of_git_or_is_unsupported(diffs: GitDiffs, seed: int) -> None:
    diff = diffs.series(seed)
    assert diff is None or not different_files(diffs, diff), diff.patch


TEXT = b"".join(b"line %d of this file\n" % number for number in range(30))
ONE, TWO = TreeFile(data=TEXT), TreeFile(data=TEXT.replace(b"line 5 ", b"another "))
SERIES: dict[str, tuple[list[dict[str, TreeFile]], PatchVerdict]] = {
    "created, then changed": ([{}, {"a": ONE}, {"a": TWO}], PatchVerdict.CLEAN),
    "changed, then deleted": ([{"a": ONE}, {"a": TWO}, {}], PatchVerdict.UNSUPPORTED),
    "created, then deleted": ([{}, {"a": ONE}, {}], PatchVerdict.UNSUPPORTED),
    "changed, then renamed": ([{"a": ONE}, {"a": TWO}, {"b": TWO}], PatchVerdict.UNSUPPORTED),
    "renamed twice": ([{"a": ONE}, {"b": ONE}, {"c": ONE}], PatchVerdict.MISSING_TARGET),
    "a file becomes a folder": ([{"a": ONE}, {"a/b": TWO}], PatchVerdict.UNSUPPORTED),
    "a folder becomes a file": ([{"a/b": ONE}, {"a": TWO}], PatchVerdict.UNSUPPORTED),
}


@pytest.mark.parametrize("name", SERIES)
def test_files_that_a_patch_changes_several_times(diffs: GitDiffs, name: str) -> None:
    trees, verdict = SERIES[name]
    patch = b"".join(diffs.between(old, new, ["-M"]) for old, new in itertools.pairwise(trees))
    diff = GitDiff(patch, MemoryTree(files=trees[0]), [])
    assert verdict_on(diff).verdict is verdict
    assert not different_files(diffs, diff)


def test_copies_are_made_of_the_file_before_the_patch(diffs: GitDiffs) -> None:
    patch = diffs.between({"a": ONE}, {"a": TWO, "b": ONE}, ["-C"])
    assert b"copy from a" in patch
    diff = GitDiff(patch, MemoryTree(files={"a": ONE}), [])
    assert verdict_on(diff).verdict is PatchVerdict.CLEAN
    assert not different_files(diffs, diff)


def test_files_can_change_places(diffs: GitDiffs) -> None:
    other = TreeFile(data=TEXT[::-1])
    patch = diffs.between({"a": ONE, "b": other}, {"a": other, "b": ONE}, ["-B", "-M"])
    assert patch.count(b"rename from") == 2
    diff = GitDiff(patch, MemoryTree(files={"a": ONE, "b": other}), [])
    assert verdict_on(diff).verdict is PatchVerdict.CLEAN
    assert not different_files(diffs, diff)


OLD, NEW = bytes(range(256)), bytes(range(255, -1, -1)) * 2


def binary_diffs(diffs: GitDiffs) -> Iterator[tuple[str, bytes]]:
    pairs = {
        "changed": (OLD, NEW),
        "created": (None, NEW),
        "deleted": (OLD, None),
        "extended": (OLD, OLD + b"x"),
    }
    for name, (before, after) in pairs.items():
        for options in (["--binary"], []):
            trees = [
                {"d.bin": TreeFile(data=data)} if data is not None else {"other": TreeFile(data=b"x")}
                for data in (before, after)
            ]
            yield f"{name} {options}", diffs.between(trees[0], trees[1], options)


def test_binary_patches_are_unsupported_on_any_tree(diffs: GitDiffs) -> None:
    for name, patch in binary_diffs(diffs):
        for data in (OLD, NEW, b"text\n", None):
            target = MemoryTree(files={"d.bin": TreeFile(data=data)} if data is not None else {})
            found = classify(read_patch("p", patch), target)
            assert found.verdict is PatchVerdict.UNSUPPORTED, (name, found)
            assert "binary" in found.reasons[0]


def test_a_change_without_context_is_unsupported_unless_git_applies_it(diffs: GitDiffs) -> None:
    lines = [f"line {number}\n" for number in range(20)]
    old = {"a.py": TreeFile(data="".join(lines).encode())}
    new = {
        "a.py": TreeFile(data="".join([*lines[:9], "an added line of some length\n", *lines[9:]]).encode())
    }
    patch = diffs.between(old, new, ["-U0"])
    for tree in (
        old,
        {"a.py": TreeFile(data=b"x\n" + new["a.py"].data)},
        {"a.py": TreeFile(data=b"an added line of some length\n")},
    ):
        assert classify(read_patch("p", patch), MemoryTree(files=tree)).verdict is PatchVerdict.UNSUPPORTED
    at_the_end = {"a.py": TreeFile(data="".join([*lines[:-1], "changed\n"]).encode())}
    patch = diffs.between(old, at_the_end, ["-U0"])
    assert classify(read_patch("p", patch), MemoryTree(files=old)).verdict is PatchVerdict.CLEAN


def test_a_submodule_is_unsupported_and_a_renamed_link_applies(diffs: GitDiffs) -> None:
    submodule = {"sub": TreeFile(data=b"", mode="160000")}
    patch = diffs.between({"a": TreeFile(data=b"x\n")}, submodule, [])
    assert classify(read_patch("p", patch), MemoryTree(files={})).verdict is PatchVerdict.UNSUPPORTED
    link = TreeFile(data=b"a.py", mode=SYMLINK)
    patch = diffs.between({"one": link}, {"two": link}, ["-M"])
    assert classify(read_patch("p", patch), MemoryTree(files={"one": link})).verdict is PatchVerdict.CLEAN


def test_the_check_is_inconclusive_if_only_git_can_decide() -> None:
    binary = b"diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n"
    found = classify(read_patch("p", binary), MemoryTree(files={"x": TreeFile(data=b"1")}))
    measured = PatchesMeasured(selected=("p",), tree="t", applies=False, verdicts=(found.measured,))
    assert judge(measured, {}).status is Status.INCONCLUSIVE
