"""Uses of objects, overrides and base classes of a provider, and comparison with other versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_zip import write_zip

from harness.compat.api.last_release import last_version_with
from harness.compat.patched_sources import apply_patches
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.surface.package_text import PackageText
from harness.compat.uses.package_uses import find_uses
from harness.compat.uses.use_check import check_uses
from harness.compat.uses.use_finding import UseFinding

LIB = {
    "lib/__init__.py": "from .core import *\n",
    "lib/core.py": (
        "from abc import ABC, abstractmethod\n"
        "class Config:\n"
        "    size: int = 1\n"
        "    def scale(self, by): return self.size * by\n"
        "class Bag:\n"
        "    def __init__(self, **kw):\n"
        "        for k, v in kw.items(): setattr(self, k, v)\n"
        "class Runner(ABC):\n"
        "    def step(self, batch, *, flag=False): return self.forward(batch, flag=flag)\n"
        "    def forward(self, batch, *, flag=False): ...\n"
        "    def helper(self): ...\n"
        "class Base(ABC):\n"
        "    @abstractmethod\n"
        "    def run(self): ...\n"
        "class Half(Base):\n"
        "    def other(self): ...\n"
        "from typing import Generic, TypeVar\n"
        "T = TypeVar('T')\n"
        "class Typed(Generic[T], Config):\n"
        "    pass\n"
    ),
}


ABSENT = "  def f(self):\n    self.c.absent()"


def package(path: Path, files: Mapping[str, str]) -> ApiSurface:
    return ApiSurface(write_zip(path, files))


def found(tmp_path: Path, text: str, then: Mapping[str, str] | None = None) -> list[UseFinding]:
    lib = package(tmp_path / "lib.zip", LIB)
    user = package(tmp_path / "user.zip", {"user/a.py": text})
    made_for = {"lib": package(tmp_path / "then.zip", {**LIB, **then})} if then else None
    uses = find_uses(user, {"lib"}).uses
    return [f for f in check_uses(uses, {"lib": ("lib 1", lib)}, user, made_for) if f.breaks]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("from lib import Config\nc = Config()\nc.absent()", "Config has no absent"),
        ("from lib import Config\nc = Config()\nc.scale()", "misses by"),
        ("from lib import Config\ndef f(c: Config):\n    return c.absent", "Config has no absent"),
        ("from lib import Config\ndef f(c: Config | None):\n    return c.scale(1, 2)", "takes 1 positional"),
        ("from lib import Config\ndef f(c: 'Config'):\n    return c.absent", "Config has no absent"),
        (
            ("import lib\nclass A:\n  def __init__(self):\n    self.c = lib.Config()\n" + ABSENT),
            "Config has no absent",
        ),
        (
            ("import lib\nclass A:\n  def __init__(self, c: lib.Config):\n    self.c = c\n" + ABSENT),
            "Config has no absent",
        ),
        ("import lib\nclass A(lib.Config):\n  def f(self):\n    self.absent()", "Config has no absent"),
        ("import lib\nclass A(lib.Half):\n  pass\nA()", "does not define run"),
        ("from lib import Typed\nc = Typed()\nc.absent()", "Typed has no absent"),
    ],
)
def test_missing_attributes_of_objects_are_found(tmp_path: Path, text: str, message: str) -> None:
    [finding] = found(tmp_path, text)
    assert message in finding.text


@pytest.mark.parametrize(
    "text",
    [
        "from lib import Config\nc = Config()\nc.size\nc.scale(2)",
        # Another meaning, another class, or something that the source code does not show.
        "from lib import Config\nc = Config()\nc = other()\nc.absent()",
        "from lib import Config\nc = Config()\ndef f():\n    global c\n    c = 1\nc.absent()",
        "from lib import Config\ndef f(c: Config | int):\n    return c.absent",
        "from lib import Config\ndef f(c: Config):\n    c.later = 1\n    return c.later",
        "from lib import Config\nclass Own(Config):\n    absent = 1\ndef f(c: Config):\n    return c.absent",
        "from lib import Bag\nb = Bag(a=1)\nb.anything",
        "from lib import Config\nc = Config()\nif hasattr(c, 'absent'):\n    c.absent()",
        "import lib\nclass A(lib.Config):\n  def f(self):\n    self.mine = 1\n    self.mine",
        "import lib\nclass A(lib.Half):\n  def run(self): ...\nA()",
        "from lib import Typed\nc = Typed()\nc.scale(2)",
        # No code creates an instance: another class uses its methods.
        "import lib\nclass A(lib.Half):\n  def more(self): ...",
    ],
)
def test_attributes_that_may_exist_are_not_reported(tmp_path: Path, text: str) -> None:
    assert not found(tmp_path, text)


OVERRIDE = "import lib\nclass A(lib.Runner):\n  def forward(self, batch): ...\n"
OLDER = {"lib/core.py": LIB["lib/core.py"].replace(", *, flag=False", "").replace(", flag=flag", "")}


def test_an_override_that_is_called_with_other_arguments_is_found(tmp_path: Path) -> None:
    [finding] = found(tmp_path, OVERRIDE, OLDER)
    assert finding.kind == "override"
    assert "has no parameter 'flag', as lib/core.py:9 calls it" in finding.text


def test_an_override_of_a_removed_method_is_found(tmp_path: Path) -> None:
    older = {"lib/core.py": LIB["lib/core.py"] + "class Config2: ...\n"}
    older["lib/core.py"] = older["lib/core.py"].replace("def helper(self)", "def gone_now(self, a)")
    text = "import lib\nclass A(lib.Runner):\n  def gone_now(self, a): ...\n"
    [finding] = found(tmp_path, text, older)
    assert "no longer has" in finding.text


def test_an_override_is_not_checked_without_its_original_version(tmp_path: Path) -> None:
    assert not found(tmp_path, OVERRIDE)
    assert not found(tmp_path, OVERRIDE, LIB)
    assert not found(tmp_path, OVERRIDE.replace("batch)", "batch, *, flag=True)"), OLDER)


def test_a_patch_of_a_name_that_was_removed_is_found(tmp_path: Path) -> None:
    text = "import lib.core\nlib.core.Config.resize = lambda self: None\n"
    older = {"lib/core.py": LIB["lib/core.py"].replace("def scale(", "def resize(")}
    [finding] = found(tmp_path, text, older)
    assert (finding.kind, finding.at_import) == ("lost-patch", True)
    # Assigning a new name is not a patch, even if some code reads it.
    assert not found(tmp_path, text)
    assert not found(tmp_path, text, LIB)


@given(st.integers(0, 60), st.data())
def test_the_last_version_with_a_name_is_before_a_removal(count: int, data: st.DataObject) -> None:
    versions = [str(n) for n in range(count)]
    there = data.draw(st.lists(st.sampled_from([True, False, None]), min_size=count, max_size=count))
    if count:
        there[-1] = False
    examined: list[str] = []

    def has(version: str) -> bool | None:
        examined.append(version)
        return there[int(version)]

    last = last_version_with(versions, has)
    if last:
        assert there[int(last)] is True
        assert int(last) + 1 == count or there[int(last) + 1] is not True
    assert len(examined) <= 2 * count.bit_length() + 2


@pytest.mark.parametrize(("gone_at", "last"), [(1, "0"), (7, "6"), (20, "19"), (0, "")])
def test_a_name_removed_once_is_found_in_the_version_before(gone_at: int, last: str) -> None:
    assert last_version_with([str(n) for n in range(20)], lambda version: int(version) < gone_at) == last


@pytest.mark.parametrize(
    ("text", "question", "expected"),
    [
        ("x.word = 1", "is_set", True),
        ("x.word: int = 1", "is_set", True),
        ("self.word = 1", "is_set", False),
        ("x.word == 1", "is_set", False),
        ("setattr(x, 'word', 1)", "is_set", True),
        ("x.words = 1", "is_set", False),
        ("self.word = 1", "is_assigned", True),
        ("self.word", "is_assigned", False),
        ("class A(lib.word): ...", "is_derived_from", True),
        ("from lib import word as other\n", "is_derived_from", True),
        ("# the word as it is written", "is_derived_from", False),
        ("def word(): ...", "is_bound", True),
        ("call(word=1)", "is_bound", True),
        ("x.word", "is_bound", False),
        ("x.word", "is_read", True),
        ("x.word = 1", "is_read", False),
        ("getattr(x, 'word')", "is_read", True),
        ("word()", "is_called", True),
        ("class word(Base): ...", "is_called", False),
    ],
)
def test_words_are_classified_by_their_context(text: str, question: str, expected: bool) -> None:
    assert getattr(PackageText(lambda: [text.encode()]), question)("word") is expected


PATCH = """\
--- a/lib/core.py
+++ b/lib/core.py
@@ -1,2 +1,3 @@
 from abc import ABC, abstractmethod
+from other import thing
 class Config:
"""


def test_patches_are_applied_or_reported_as_misfits() -> None:
    texts, added_by, misfits = apply_patches(
        [
            ("verl/a", PATCH),
            ("verl/b", PATCH),
            ("verl/c", "no patch"),
            ("verl/d", PATCH.replace("core", "no")),
        ],
        LIB.get,
    )
    assert texts["lib/core.py"].splitlines()[1] == "from other import thing"
    assert added_by == {"lib/core.py": {"from other import thing": "verl/a"}}
    assert misfits == ["verl/b", "verl/d"]


def test_a_patch_applies_at_an_offset_and_to_new_files() -> None:
    moved = {"lib/core.py": "# a licence\n# of two lines\n" + LIB["lib/core.py"]}
    new = "--- /dev/null\n+++ b/lib/new.py\n@@ -0,0 +1 @@\n+import lib\n"
    texts, _changed, misfits = apply_patches([("a", PATCH), ("b", new)], moved.get)
    assert "from other import thing" in texts["lib/core.py"]
    assert texts["lib/new.py"] == "import lib\n"
    assert not misfits


def test_only_python_files_of_a_patch_are_applied() -> None:
    data = "--- a/lib/x.json\n+++ b/lib/x.json\n@@ -1 +1 @@\n-{}\n+[]\n"
    binary = (
        "diff --git a/lib/x.so b/lib/x.so\nindex 0..1 100644\nBinary files a/lib/x.so and b/lib/x.so differ\n"
    )
    texts, _changed, misfits = apply_patches([("a", PATCH + data + binary)], LIB.get)
    assert list(texts) == ["lib/core.py"]
    assert not misfits


def test_files_that_a_patch_moves_or_removes() -> None:
    moved = (
        "diff --git a/lib/core.py b/lib/other.py\nsimilarity index 90%\nrename from lib/core.py\n"
        "rename to lib/other.py\n--- a/lib/core.py\n+++ b/lib/other.py\n"
    )
    texts, _changed, misfits = apply_patches(
        [("a", moved + PATCH.partition("+++ b/lib/core.py\n")[2])], LIB.get
    )
    assert not misfits
    assert texts["lib/core.py"] is None
    assert "from other import thing" in (texts["lib/other.py"] or "")
    removed = "--- a/lib/small.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"
    texts, _changed, misfits = apply_patches([("a", removed)], {"lib/small.py": "x = 1\n"}.get)
    assert texts == {"lib/small.py": None}
    assert not misfits


def test_a_patch_of_quilt_has_a_folder_before_its_paths() -> None:
    quilt = PATCH.replace("--- a/", "--- lib-1.0.orig/").replace("+++ b/", "+++ lib-1.0/")
    new = "--- lib-1.0.orig/lib/new.py\n+++ lib-1.0/lib/new.py\n@@ -0,0 +1 @@\n+import lib\n"
    texts, _changed, misfits = apply_patches([("a", quilt + new)], LIB.get)
    assert not misfits
    assert sorted(texts) == ["lib/core.py", "lib/new.py"]


def test_of_several_places_a_hunk_is_applied_at_the_nearest_one() -> None:
    text = {"lib/a.py": "a\nx\nb\n" * 3}
    patch = "--- a/lib/a.py\n+++ b/lib/a.py\n@@ -6,3 +6,3 @@\n a\n-x\n+y\n b\n"
    texts, _changed, misfits = apply_patches([("a", patch)], text.get)
    assert not misfits
    assert texts["lib/a.py"] == "a\nx\nb\na\nx\nb\na\ny\nb\n"


def test_a_file_without_a_newline_at_its_end_is_read_as_git_reads_it() -> None:
    marker = "\\ No newline at end of file\n"
    new = f"--- /dev/null\n+++ b/lib/new.py\n@@ -0,0 +1,2 @@\n+import lib\n+x = 1\n{marker}"
    old = f"--- a/lib/old.py\n+++ b/lib/old.py\n@@ -1,2 +1,2 @@\n a = 1\n-b = 1\n{marker}+b = 2\n"
    texts, _added, misfits = apply_patches([("a", new), ("b", old)], {"lib/old.py": "a = 1\r\nb = 1"}.get)
    assert not misfits
    assert texts == {"lib/new.py": "import lib\nx = 1\n", "lib/old.py": "a = 1\nb = 2\n"}


def test_a_class_in_a_function_can_use_its_own_attributes_in_its_constructor(tmp_path: Path) -> None:
    body = "class C(Runner):\n    def __init__(self):\n      self.c = self.helper()\n      self.absent()"
    [finding] = found(tmp_path, f"from lib import Runner\ndef f():\n  {body}\n")
    assert finding.name == "lib.Runner.absent"
