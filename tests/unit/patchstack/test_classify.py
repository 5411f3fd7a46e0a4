"""An example of every verdict, and cases that are hard to distinguish."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from memory_tree import MemoryTree

from harness.patchstack.apply.classify import classify, read_patch
from harness.patchstack.apply.patch_verdict import MEANING, ClassifiedPatch, PatchVerdict
from harness.patchstack.format.diff_writer import diff_files
from harness.sources.tree import SYMLINK, TreeFile, blob_id

PATH = "pkg/mod.py"
BASE = b"".join(b"def f%d(x):\n    a = x + %d\n    b = a * 2\n    return b\n\n\n" % (n, n) for n in range(6))
FIXED = BASE.replace(b"    a = x + 3\n", b"    a = int(x) + 3\n    assert a is not None, 'three'\n")


class Blobs:
    """Old contents by blob id."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {blob_id(data): data for data in contents}

    def blob(self, expected: str) -> bytes | None:
        return next((data for name, data in self.contents.items() if name.startswith(expected)), None)


def tree(**files: bytes) -> MemoryTree:
    return MemoryTree(files={f"pkg/{name}.py": TreeFile(data=data) for name, data in files.items()})


def patch(old: bytes = BASE, new: bytes = FIXED, path: str = PATH) -> bytes:
    return diff_files({path: (old, new)})


def verdict(data: bytes, target: MemoryTree, *bases: bytes) -> ClassifiedPatch:
    return classify(read_patch("p", data), target, Blobs(*bases) if bases else None)


def test_every_verdict_has_a_meaning() -> None:
    assert set(MEANING) == set(PatchVerdict)


def test_clean() -> None:
    found = verdict(patch(), tree(mod=BASE))
    assert found.verdict is PatchVerdict.CLEAN
    assert found.files[PATH] == TreeFile(data=FIXED)
    assert found.hunks[0].symbol == "f3"


def test_offset_has_its_number_of_lines() -> None:
    found = verdict(patch(), tree(mod=b"import os\nimport sys\n" + BASE))
    assert (found.verdict, found.offset) == (PatchVerdict.OFFSET, 2)


def test_already_upstream() -> None:
    found = verdict(patch(), tree(mod=FIXED))
    assert found.verdict is PatchVerdict.ALREADY_UPSTREAM
    assert found.files == {}


@pytest.mark.parametrize("bases", [(BASE,), ()], ids=["with the original at hand", "without"])
def test_already_upstream_after_the_context_changed(bases: tuple[bytes, ...]) -> None:
    drifted = FIXED.replace(b"three'\n    b = a * 2", b"three'\n    b = 2 * a")
    assert verdict(patch(), tree(mod=drifted), *bases).verdict is PatchVerdict.ALREADY_UPSTREAM


def test_merged_when_only_the_context_changed() -> None:
    target = BASE.replace(b"    return b\n\n\ndef f4", b"    return -b\n\n\ndef f4")
    found = verdict(patch(), tree(mod=target), BASE)
    assert found.verdict is PatchVerdict.MERGED
    assert found.candidate_data is not None
    again = verdict(found.candidate_data, tree(mod=target))
    assert again.verdict is PatchVerdict.CLEAN
    assert again.files[PATH].data == FIXED.replace(b"    return b\n\n\ndef f4", b"    return -b\n\n\ndef f4")


def test_conflict_names_file_hunk_and_line() -> None:
    found = verdict(patch(), tree(mod=BASE.replace(b"a = x + 3", b"a = x + 33")), BASE)
    assert found.verdict is PatchVerdict.CONFLICT
    assert (found.failures[0].path, found.failures[0].hunk) == (PATH, 1)
    assert "a = x + 3" in found.reasons[0]
    assert found.remedies


def test_conflict_lists_hunks_that_are_upstream() -> None:
    both = FIXED.replace(b"a = x + 0", b"a = x - 0 + len('a longer change')")
    half = BASE.replace(b"a = x + 0", b"a = x - 0 + len('a longer change')").replace(b"a = x + 3", b"c = 3")
    found = verdict(patch(BASE, both), tree(mod=half))
    assert found.verdict is PatchVerdict.CONFLICT
    assert any("hunk 1 of 2 is already upstream" in reason for reason in found.reasons)


def test_line_endings_have_a_converted_candidate() -> None:
    crlf = BASE.replace(b"\n", b"\r\n")
    found = verdict(patch(), tree(mod=crlf))
    assert found.verdict is PatchVerdict.LINE_ENDINGS
    assert "CRLF" in found.reasons[0]
    assert found.candidate_data is not None
    again = verdict(found.candidate_data, tree(mod=crlf))
    assert again.verdict is PatchVerdict.CLEAN
    assert again.files[PATH].data == FIXED.replace(b"\n", b"\r\n")


def test_mixed_line_endings_are_not_mixed_further() -> None:
    lines = BASE.splitlines(keepends=True)
    mixed = b"".join(
        line.replace(b"\n", b"\r\n") if number >= 18 else line for number, line in enumerate(lines)
    )
    found = verdict(patch(), tree(mod=mixed))
    assert found.verdict is PatchVerdict.LINE_ENDINGS
    result = found.files[PATH].data
    assert result.replace(b"\r\n", b"\n") == FIXED
    assert result.count(b"\r\n") == mixed.count(b"\r\n") + 1


def test_already_upstream_with_other_line_endings() -> None:
    assert verdict(patch(), tree(mod=FIXED.replace(b"\n", b"\r\n"))).verdict is PatchVerdict.ALREADY_UPSTREAM


SIBLINGS = b"".join(
    b"def %s(x):\n    y = x\n    y += 1\n    y += 2\n    y += 3\n    y += 4\n    y += 5\n    return y\n\n\n"
    % name
    for name in (b"a", b"b", b"c")
)


@pytest.mark.parametrize("known", [True, False], ids=["by the original file", "by the hunk's heading"])
def test_misplaced_when_the_original_function_is_removed(known: bool) -> None:
    """git silently applies this patch to another function."""
    start, end = SIBLINGS.index(b"def b("), SIBLINGS.index(b"def c(")
    body = SIBLINGS[start:end].replace(b"    y += 3\n", b"    y += 30\n")
    made = patch(SIBLINGS, SIBLINGS[:start] + body + SIBLINGS[end:])
    if not known:
        made = made.replace(b"@@\n", b"@@ def b(x):\n").replace(b"@@ def a(x):", b"@@ def b(x):")
    target = tree(mod=SIBLINGS[:start] + SIBLINGS[end:])
    found = verdict(made, target, *([SIBLINGS] if known else []))
    assert found.verdict is PatchVerdict.MISPLACED
    assert found.verdict.accepted_by_git
    assert "'b'" in found.reasons[0]
    assert found.files == {}


def test_misplaced_when_the_original_function_is_directly_above() -> None:
    start, end = SIBLINGS.index(b"def b("), SIBLINGS.index(b"def c(")
    body = SIBLINGS[start:end].replace(b"    y += 3\n", b"    y += 30\n")
    made = patch(SIBLINGS, SIBLINGS[:start] + body + SIBLINGS[end:])
    made = made.replace(b"@@\n", b"@@ def b(x):\n").replace(b"@@ def a(x):", b"@@ def b(x):")
    others = SIBLINGS[:end].replace(b"y += ", b"y -= ")
    assert verdict(made, tree(mod=others + SIBLINGS[end:])).verdict is PatchVerdict.MISPLACED


def test_not_misplaced_when_the_function_only_moved() -> None:
    target = b"import os\n\n\n" + SIBLINGS
    made = patch(SIBLINGS, SIBLINGS.replace(b"    y += 3\n", b"    y += 30\n", 1))
    assert verdict(made, tree(mod=target), SIBLINGS).verdict is PatchVerdict.OFFSET


TWO = b"""class Worker:
    def run(self, x):
        y = x + 1
        y += 1
        y += 2
        y += 3
        y += 4
        y += 5
        y += 6
        return y


class Other:
    def stop(self):
        return None
"""


def test_not_misplaced_when_the_class_of_a_function_was_split() -> None:
    """As in verl's AgentLoopWorkerBase: the old name is now another class, and only one function has this name."""
    base = TWO.replace(b"class Worker:", b"class WorkerBase:") + b"\n\nclass Worker(WorkerBase):\n    pass\n"
    made = patch(base, base.replace(b"y += 3\n", b"y += 30\n"))
    assert verdict(made, tree(mod=TWO), base).verdict is PatchVerdict.CLEAN
    assert (
        verdict(patch(TWO, TWO.replace(b"y += 3\n", b"y += 30\n")), tree(mod=base), TWO).verdict
        is PatchVerdict.CLEAN
    )


def test_misplaced_when_another_class_has_a_function_of_the_same_name() -> None:
    base = TWO + b"\n\n" + TWO.replace(b"Worker", b"Second").replace(b"Other", b"Third")
    made = patch(base, TWO + b"\n\n" + base[len(TWO) + 2 :].replace(b"y += 3\n", b"y += 30\n"))
    gone = TWO + b"\n\nclass Third:\n    pass\n"
    found = verdict(made, tree(mod=gone), base)
    assert found.verdict is PatchVerdict.MISPLACED
    assert "'Second.run'" in found.reasons[0]


def test_missing_target() -> None:
    found = verdict(patch(), tree(other=BASE))
    assert found.verdict is PatchVerdict.MISSING_TARGET
    assert PATH in found.reasons[0]


CORRUPT: Mapping[str, bytes] = {
    "empty": b"",
    "no patch at all": b"hello\nworld\n",
    "wrong counts": patch().replace(b",6 ", b",9 ").replace(b",7 ", b",9 "),
    "cut off": patch()[:-20],
    "hunk without file": b"@@ -1,2 +1,2 @@\n a\n-b\n+c\n",
    "changes nothing": b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n a\n",
    "binary noise": bytes(range(256)) * 10,
}


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt(name: str) -> None:
    found = verdict(CORRUPT[name], tree(mod=BASE))
    assert found.verdict is PatchVerdict.CORRUPT
    assert found.reasons[0].startswith("line ")


def header(path: str, mode: str = "100644") -> bytes:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"
    ).encode()


UNSAFE = {
    "parent folder": header("../../etc/passwd"),
    "parent folder inside": header("pkg/../../x"),
    "git folder": header(".git/hooks/post-checkout"),
    "git folder, other case": header("pkg/.GIT/config"),
    "drive": header("C:/x"),
    "backslashes": header("..\\..\\x"),
    "device mode": header("pkg/x", "060644"),
    "set-user-id": header("pkg/x", "104755"),
    "quoted traversal": b'--- /dev/null\n+++ "b/\\056\\056/x"\n@@ -0,0 +1 @@\n+x\n',
}


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe(name: str) -> None:
    found = verdict(UNSAFE[name], tree(mod=BASE))
    assert found.verdict is PatchVerdict.UNSAFE
    assert found.files == {}


def test_unsafe_behind_a_symbolic_link() -> None:
    target = MemoryTree(files={"pkg/link": TreeFile(data=b"/etc", mode=SYMLINK)})
    assert verdict(header("pkg/link/passwd"), target).verdict is PatchVerdict.UNSAFE


def test_unsafe_when_a_link_is_patched_as_a_file() -> None:
    target = MemoryTree(files={PATH: TreeFile(data=BASE, mode=SYMLINK)})
    assert verdict(patch(), target).verdict is PatchVerdict.UNSAFE


def test_changes_after_the_end_of_a_hunk_are_reported() -> None:
    made = patch() + b"+never applied\n"
    found = verdict(made, tree(mod=BASE))
    assert found.verdict is PatchVerdict.CLEAN
    assert any("ignored" in reason for reason in found.reasons)


def test_a_rename_a_creation_and_a_deletion() -> None:
    data = (
        b"diff --git a/pkg/mod.py b/pkg/new name.py\nsimilarity index 100%\n"
        b"rename from pkg/mod.py\nrename to pkg/new name.py\n"
        b"diff --git a/pkg/gone.py b/pkg/gone.py\ndeleted file mode 100644\n--- a/pkg/gone.py\n+++ /dev/null\n"
        b"@@ -1 +0,0 @@\n-x\n"
    ) + header("pkg/caf\u00e9.py", "100755")
    found = verdict(data, tree(mod=BASE, gone=b"x\n"))
    assert found.verdict is PatchVerdict.CLEAN
    assert found.files == {
        "pkg/mod.py": None,
        "pkg/gone.py": None,
        "pkg/new name.py": TreeFile(data=BASE),
        "pkg/caf\u00e9.py": TreeFile(data=b"x\n", mode="100755"),
    }


SAME_BODY = """import torch


def first(x):
    a = prepare(x)
    b = run(a)
    return b


def second(x):
    a = prepare(x)
    b = run(a)
    return b
"""
CALL = "    torch.npu.synchronize_all()\n"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "hunk", ["@@ -5,3 +5,4 @@ def first(x):\n", "@@ -4,4 +4,5 @@ import torch\n def first(x):\n"]
)
def test_a_change_that_only_another_function_has_is_not_upstream(hunk: str, ending: str) -> None:
    lines = f"     a = prepare(x)\n+{CALL}     b = run(a)\n     return b\n"
    data = f"--- a/{PATH}\n+++ b/{PATH}\n{hunk}{lines}".encode()
    rewritten = SAME_BODY.replace("a = prepare(x)\n    b = run(a)\n", "a = prepare2(x)\n    b = run2(a)\n", 1)
    rewritten = rewritten.replace("def first(x)", "def first(x, y)")
    before_run = f"    a = prepare(x)\n{CALL}    b = run(a)\n"
    other = rewritten.replace("    a = prepare(x)\n    b = run(a)\n", before_run)
    found = verdict(data, tree(mod=other.replace("\n", ending).encode()))
    assert found.verdict is PatchVerdict.CONFLICT
    assert not any("upstream" in reason for reason in found.reasons)
    own = rewritten.replace("a = prepare2(x)\n", f"a = prepare2(x)\n{CALL}").replace("prepare(x)", "make(x)")
    assert verdict(data, tree(mod=own.encode())).verdict is PatchVerdict.ALREADY_UPSTREAM
