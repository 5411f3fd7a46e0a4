"""Whether patches are in an installation: applied, absent, partly applied, edited later."""

from __future__ import annotations

from memory_tree import MemoryTree

from harness.patchstack.apply.classify import LoadedPatch, read_patch
from harness.patchstack.stacks.installed_patches import Presence, probe_patches
from harness.sources.tree import TreeFile

FIRST = b"""\
--- a/pkg/one.py
+++ b/pkg/one.py
@@ -1,3 +1,3 @@
 a = 1
-b = 2
+b = 20
 c = 3
--- a/pkg/two.py
+++ b/pkg/two.py
@@ -1,2 +1,3 @@
 x = 1
+y = 2
 z = 3
"""
SECOND = b"""\
--- a/pkg/one.py
+++ b/pkg/one.py
@@ -1,3 +1,3 @@
 a = 1
-b = 20
+b = 200
 c = 3
"""
STACK: tuple[LoadedPatch, ...] = (read_patch("first", FIRST), read_patch("second", SECOND))


def presence(one: str, two: str, stack: tuple[LoadedPatch, ...] = STACK) -> list[Presence]:
    files = {"pkg/one.py": TreeFile(data=one.encode()), "pkg/two.py": TreeFile(data=two.encode())}
    return [found.presence for found in probe_patches(MemoryTree(files=files), stack)]


def test_a_patch_whose_lines_a_later_patch_changes_is_there():
    assert presence("a = 1\nb = 200\nc = 3\n", "x = 1\ny = 2\nz = 3\n") == [Presence.PRESENT] * 2


def test_edits_elsewhere_do_not_matter():
    assert (
        presence("a = 1\nb = 200\nc = 3\nd = 4\n", "x = 1\ny = 2\nz = 3\nw = 0\n") == [Presence.PRESENT] * 2
    )


def test_an_unpatched_tree_lacks_the_first_patch_and_cannot_take_the_second():
    assert presence("a = 1\nb = 2\nc = 3\n", "x = 1\nz = 3\n") == [Presence.MISSING, Presence.CHANGED]


def test_a_patch_that_was_left_out_is_missing():
    assert presence("a = 1\nb = 20\nc = 3\n", "x = 1\ny = 2\nz = 3\n") == [Presence.PRESENT, Presence.MISSING]


def test_a_line_that_was_edited_later_is_found_with_its_file():
    files = {
        "pkg/one.py": TreeFile(data=b"a = 1\nb = 20\nc = 3\n"),
        "pkg/two.py": TreeFile(data=b"x = 1\ny = 99\nz = 3\n"),
    }
    (found,) = probe_patches(MemoryTree(files=files), STACK[:1])
    assert found.presence is Presence.CHANGED
    assert [reason.partition(":")[0] for reason in found.reasons] == ["pkg/two.py"]


def test_a_patch_of_which_one_file_was_written_is_changed():
    assert presence("a = 1\nb = 20\nc = 3\n", "x = 1\nz = 3\n", STACK[:1]) == [Presence.CHANGED]


def test_a_file_that_is_no_patch_is_unreadable():
    assert presence("", "", (read_patch("broken", b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n"),)) == [
        Presence.UNREADABLE
    ]
