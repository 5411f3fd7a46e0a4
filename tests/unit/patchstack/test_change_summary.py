from __future__ import annotations

import json

from memory_tree import MemoryTree

from harness.patchstack.apply.classify import read_patch
from harness.patchstack.format.diff_writer import diff_files
from harness.patchstack.python_source.source_outline import outline
from harness.patchstack.stacks.change_summary import (
    FileChanges,
    SymbolChange,
    summarise_changes,
    summarise_file,
)
from harness.sources.tree import TreeFile

OLD = b'''\
import os
LIMIT = 1


def keep(x):
    return x


def change(a, b):
    return a


def gone():
    pass


class Box:
    """A box."""

    size: int = 1

    def lift(self, by):
        return by

    def drop(self):
        return 0
'''
NEW = b'''\
import os
import torch_npu
LIMIT = 2


def keep(x):
    # another comment
    return x


def change(a, b, c=None):
    return a


class Box(dict):
    """A box."""

    size: int = 1
    weight = 2

    def lift(self, by):
        return -by


class New:
    def __init__(self):
        pass
'''


def changes(found: FileChanges) -> set[tuple[str, str, str, str]]:
    inner = {
        (one.name, change.action, change.kind, change.name) for one in found.classes for change in one.changes
    }
    return {("", change.action, change.kind, change.name) for change in found.module} | inner


def test_every_kind_of_change_is_named() -> None:
    found = summarise_file("pkg/mod.py", OLD, TreeFile(data=NEW))
    assert changes(found) == {
        ("", "added", "module_attr", "torch_npu"),
        ("", "replaced", "module_attr", "LIMIT"),
        ("", "replaced", "function", "change"),
        ("", "deleted", "function", "gone"),
        ("Box", "replaced", "class", "Box"),
        ("Box", "added", "attribute", "weight"),
        ("Box", "replaced", "method", "lift"),
        ("Box", "deleted", "method", "drop"),
        ("New", "added", "method", "__init__"),
    }
    assert [(one.name, one.action) for one in found.classes] == [("Box", "updated"), ("New", "added")]


def test_a_changed_signature_is_shown_with_upstreams_signature() -> None:
    found = summarise_file("pkg/mod.py", OLD, TreeFile(data=NEW))
    change = next(change for change in found.module if change.name == "change")
    assert change == SymbolChange(
        action="replaced", kind="function", name="change", was="(a, b)", now="(a, b, c=None)"
    )
    assert change.to_json()["signature"] == {"was": "(a, b)", "now": "(a, b, c=None)"}


def test_comments_and_layout_change_nothing() -> None:
    found = summarise_file("m.py", b"a = 1\n", TreeFile(data=b"# why\na  =  1\n"))
    assert (found.module, found.classes) == ((), ())
    assert found.note


def test_files_that_are_not_python_have_a_note() -> None:
    assert "not Python" in summarise_file("a.yaml", b"a: 1", TreeFile(data=b"a: 2")).note
    assert "added" in summarise_file("a.yaml", None, TreeFile(data=b"a: 2")).note
    assert "deleted" in summarise_file("a.yaml", b"a: 1", None).note
    assert "not readable" in summarise_file("a.py", b"def (", TreeFile(data=b"x = 1")).note


def test_definitions_in_blocks_belong_to_the_module() -> None:
    found = outline(
        b"try:\n    import a\nexcept ImportError:\n    a = None\nif x:\n    def f(): pass\nelse:\n    f = 1\n"
    )
    assert found is not None
    assert set(found) == {"a", "f"}
    assert found["a"].body.count("alias") == 1


def test_a_new_and_a_removed_file() -> None:
    assert {change.action for change in summarise_file("m.py", None, TreeFile(data=OLD)).module} == {"added"}
    assert {change.action for change in summarise_file("m.py", OLD, None).module} == {"deleted"}


def test_the_summary_as_text_and_json() -> None:
    tree = MemoryTree(files={"pkg/mod.py": TreeFile(data=OLD)}, label="v1")
    patches = [
        read_patch("good", diff_files({"pkg/mod.py": (OLD, NEW)})),
        read_patch("bad", diff_files({"pkg/other.py": (OLD, NEW)})),
        read_patch("ugly", b"?"),
    ]
    found = summarise_changes("verl", patches, tree)
    text = found.to_text()
    assert "NPU Patch Summary" in text.splitlines()[0]
    assert "Patch File1: pkg/mod.py" in text
    assert "Patch class: pkg.mod.Box (updated)" in text
    assert "(a, b) became (a, b, c=None)" in text
    assert "bad (missing-target on v1)" in text
    assert "ugly (corrupt on v1)" in text
    data = json.loads(json.dumps(found.to_json()))
    assert [patch["verdict"] for patch in data["patches"]] == ["clean", "missing-target", "corrupt"]
    assert data["patches"][0]["files"][0]["class_changes"][0]["class"] == "Box"
