"""Any bytes give a verdict, never an exception or a partly written tree."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from gitcorpus import GitBox
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from memory_tree import MemoryTree

from harness.patchstack.apply.classify import classify, read_patch
from harness.patchstack.apply.patch_verdict import PatchVerdict
from harness.patchstack.apply.stack_apply import apply_stack
from harness.patchstack.format.diff_writer import diff_files
from harness.patchstack.stacks.stack_export import canonical
from harness.sources.tree import EXECUTABLE, SYMLINK, TreeFile, path_problem

OLD = b"".join(b"line %d\n" % number for number in range(30))
NEW = OLD.replace(b"line 7\n", b"line seven\n").replace(b"line 25\n", b"")
TREE = MemoryTree(
    files={
        "pkg/mod.py": TreeFile(data=OLD),
        "pkg/caf\u00e9 x.py": TreeFile(data=OLD),
        "pkg/crlf.py": TreeFile(data=OLD.replace(b"\n", b"\r\n")),
        "pkg/no_end.py": TreeFile(data=OLD[:-1]),
        "pkg/run.sh": TreeFile(data=b"#!/bin/sh\n", mode=EXECUTABLE),
        "pkg/empty.py": TreeFile(data=b""),
        "pkg/link": TreeFile(data=b"mod.py", mode=SYMLINK),
    }
)
RENAME = (
    b"diff --git a/pkg/mod.py b/pkg/other.py\nsimilarity index 90%\nrename from pkg/mod.py\nrename to pkg/other.py\n"
    + diff_files({"pkg/mod.py": (OLD, NEW)}).split(b"\n", 2)[2].replace(b"b/pkg/mod", b"b/pkg/other")
)
SEEDS = [
    diff_files({"pkg/mod.py": (OLD, NEW)}),
    diff_files({"pkg/caf\u00e9 x.py": (OLD, NEW)}),
    diff_files({"pkg/crlf.py": (OLD.replace(b"\n", b"\r\n"), NEW.replace(b"\n", b"\r\n"))}),
    diff_files({"pkg/no_end.py": (OLD[:-1], NEW[:-1] + b"more")}),
    diff_files({"pkg/mod.py": (OLD, NEW), "pkg/no_end.py": (OLD[:-1], OLD)}),
    RENAME,
    b"diff --git a/pkg/mod.py b/pkg/copy.py\nsimilarity index 100%\ncopy from pkg/mod.py\ncopy to pkg/copy.py\n",
    b"diff --git a/pkg/run.sh b/pkg/run.sh\nold mode 100755\nnew mode 100644\n",
    b"diff --git a/pkg/empty.py b/pkg/empty.py\ndeleted file mode 100644\nindex e69de29..0000000\n",
    (
        b"diff --git a/pkg/new b/pkg/new\nnew file mode 120000\n--- /dev/null\n+++ b/pkg/new\n@@ -0,0 +1 @@\n+mod.py\n"
        b"\\ No newline at end of file\n"
    ),
    b"diff --git a/pkg/b b/pkg/b\nnew file mode 100644\nGIT binary patch\nliteral 3\nKcmZQzWMT#Y01f~L\n\nliteral 0\nHcmV?d00001\n",
    b"Binary files a/x and b/x differ\n",
    b'diff --git "a/pkg/caf\\303\\251 x.py" "b/pkg/caf\\303\\251 x.py"\nold mode 100644\nnew mode 100755\n',
]
BITS = [
    b"",
    b"\r",
    b"\n",
    b"\0",
    b"@@ -1,9 +1,9 @@\n",
    b"--- a/../x\n",
    b"+++ /dev/null\n",
    b"\\ No newline at end of file\n",
    b'"',
    b"+",
    b"-",
    b"99999999999999999999",
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + draw(st.sampled_from(BITS)) + data[at:]
        elif kind == 2:
            data = data[:at] + data[at + draw(st.integers(1, 12)) :]
        elif kind == 3:
            data = data[:at] + draw(st.binary(max_size=3)) + data[at:]
        else:
            data += draw(st.sampled_from(SEEDS))
    return data


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(data=mutated())
def test_any_patch_has_a_verdict_and_changes_all_or_nothing(data: bytes) -> None:
    verdict = classify(read_patch("p", data), TREE)
    result = apply_stack(TREE, [read_patch("p", data)])
    assert result.verdicts == (verdict,)
    if not verdict.verdict.applies:
        assert result.files == {}
    assert all(path_problem(path) == "" for path in verdict.files)
    if verdict.verdict in {
        PatchVerdict.CORRUPT,
        PatchVerdict.UNSAFE,
        PatchVerdict.CONFLICT,
        PatchVerdict.MISSING_TARGET,
    }:
        assert verdict.files == {}
        assert verdict.reasons
        assert verdict.remedies


@settings(max_examples=200)
@given(data=mutated())
def test_the_canonical_form_has_the_same_verdict(data: bytes) -> None:
    loaded = read_patch("p", data)
    if loaded.patch is None or any(file.binary for file in loaded.patch.files):
        return
    again = classify(read_patch("p", canonical(data)), TREE)
    assert again.verdict is classify(loaded, TREE).verdict


@given(data=st.binary(max_size=300))
def test_any_bytes_have_a_verdict(data: bytes) -> None:
    assert classify(read_patch("p", data), TREE).verdict in PatchVerdict


@pytest.mark.parametrize("chunk", range(4))
def test_mutated_patches_are_accepted_as_by_git(chunk: int, tmp_path: Path) -> None:
    rng = random.Random(chunk)
    tree = MemoryTree(files={path: file for path, file in TREE.files.items() if file.mode != SYMLINK})
    box = GitBox(tmp_path)
    wrong = []
    for number in range(100):
        data = rng.choice(SEEDS)
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(data) + 1)
            data = (
                data[:at] + rng.choice([b"", b"\n", b"+", b" ", b"x", b"1"]) + data[at + rng.randrange(3) :]
            )
        verdict = classify(read_patch("p", data), tree).verdict
        if verdict in {PatchVerdict.UNSAFE, PatchVerdict.CLEAN} and b"GIT binary" in data:
            continue
        says = box.apply(tree, data)
        if verdict.accepted_by_git != says.accepts and not known_difference(data, verdict, says.message):
            wrong.append((number, verdict, says.accepts, says.message, data))
    assert not wrong, wrong[0]


MIXED = b"one\r\ntwo\nthree\rfour\r\nfive\n"
KINDS: Mapping[str, tuple[bytes, PatchVerdict]] = {
    "truncated": (SEEDS[0][:-30], PatchVerdict.CORRUPT),
    "wrong counts": (SEEDS[0].replace(b",6 ", b",9 "), PatchVerdict.CORRUPT),
    "binary": (SEEDS[10], PatchVerdict.UNSUPPORTED),
    "no newline at the end": (SEEDS[3], PatchVerdict.CLEAN),
    "unicode path": (SEEDS[1], PatchVerdict.CLEAN),
    "rename": (RENAME, PatchVerdict.CLEAN),
    "copy": (SEEDS[6], PatchVerdict.CLEAN),
    "mode change": (SEEDS[7], PatchVerdict.CLEAN),
    "quoted path": (SEEDS[12], PatchVerdict.CLEAN),
    "CRLF": (SEEDS[2], PatchVerdict.CLEAN),
    "CRLF on LF": (SEEDS[2].replace(b"crlf.py", b"mod.py"), PatchVerdict.LINE_ENDINGS),
    "CR, LF and CRLF mixed": (
        diff_files({"pkg/mixed.py": (MIXED, MIXED.replace(b"three", b"3"))}),
        PatchVerdict.CLEAN,
    ),
    "empty": (b"", PatchVerdict.CORRUPT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_bad_input_has_its_verdict_and_git_agrees(kind: str, tmp_path: Path) -> None:
    data, expected = KINDS[kind]
    plain = {path: file for path, file in TREE.files.items() if file.mode != SYMLINK}
    tree = MemoryTree(files={**plain, "pkg/mixed.py": TreeFile(data=MIXED)})
    found = classify(read_patch("p", data), tree)
    assert found.verdict is expected, found.reasons
    if kind == "binary":
        return  # git has the objects in the patch itself; we apply text only and say so.
    says = GitBox(tmp_path).apply(tree, data)
    assert says.accepts == found.verdict.accepted_by_git
    for path, file in found.files.items() if says.accepts else ():
        assert says.files.get(path) == (file.data if file else None)
    if not says.accepts:
        assert says.files == {path: file.data for path, file in tree.files.items()}


def known_difference(data: bytes, verdict: PatchVerdict, _message: str) -> bool:
    """Cases in which we are stricter than git: binary changes, unusual modes, hunks without context, bad quoting."""
    broken_quoting = verdict is PatchVerdict.CORRUPT and b'"' in data
    return (
        b"GIT binary patch" in data or verdict is PatchVerdict.UNSAFE or b"@@ -0,0" in data or broken_quoting
    )


def test_a_patch_above_the_size_limit_is_rejected() -> None:
    import harness.patchstack.format.diff_parser as module

    before = module.MAX_PATCH_BYTES
    try:
        module.MAX_PATCH_BYTES = 1000
        assert classify(read_patch("p", b"+" * 1001), TREE).verdict is PatchVerdict.CORRUPT
    finally:
        module.MAX_PATCH_BYTES = before


def test_a_large_patch_is_read_in_one_pass() -> None:
    lines = b"".join(b"+line %d\n" % number for number in range(200_000))
    data = (
        b"diff --git a/big b/big\nnew file mode 100644\n--- /dev/null\n+++ b/big\n@@ -0,0 +1,200000 @@\n"
        + lines
    )
    found = classify(read_patch("p", data), TREE)
    assert found.verdict is PatchVerdict.CLEAN
    assert found.files["big"] == TreeFile(data=lines.replace(b"+", b""))
