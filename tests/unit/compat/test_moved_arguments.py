"""Positional arguments that get another parameter than in the version that a use was written for."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_zip import write_zip

from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.package_uses import find_uses
from harness.compat.uses.use_check import check_uses


def texts(folder: Path, before: str, after: str, call: str) -> list[str]:
    """What is found in a call that was written for `before` and meets `after`."""
    old = ApiSurface(write_zip(folder / "old.zip", {"lib/__init__.py": before}))
    new = ApiSurface(write_zip(folder / "new.zip", {"lib/__init__.py": after}))
    user = ApiSurface(write_zip(folder / "user.zip", {"user/a.py": f"import lib\n{call}\n"}))
    uses = find_uses(user, {"lib"}).uses
    return [one.text for one in check_uses(uses, {"lib": ("lib 2", new)}, user, {"lib": old}) if one.breaks]


@pytest.mark.parametrize(
    ("before", "after", "call", "expected"),
    [
        (
            "def f(a, b=0, c=0): ...",
            "def f(a, new=0, b=0, c=0): ...",
            "lib.f(1, 2)",
            ["f takes 'new' as positional argument 2, which was 'b' in the version it was written for"],
        ),
        ("def f(a, b=0): ...", "def f(b=0, a=0): ...", "lib.f(1)", ["f takes 'b' as positional argument 1"]),
        ("def f(a, b=0): ...", "def f(a, new=0, b=0): ...", "lib.f(1, b=2)", []),
        ("def f(a, b=0): ...", "def f(a, b=0, new=0): ...", "lib.f(1, 2)", []),
        ("def f(a, b=0): ...", "def f(a, renamed=0): ...", "lib.f(1, 2)", []),
        ("def f(a, b=0): ...", "def f(a, new=0, b=0): ...", "lib.f(*rest)", []),
        (
            "class C:\n  def __init__(self, a, b=0): ...",
            "class C:\n  def __init__(self, b=0, a=0): ...",
            "lib.C(1)",
            ["C takes 'b' as positional argument 1"],
        ),
        # An argument that the old version did not take either says nothing of the change.
        ("def f(a): ...", "def f(b=0, a=0): ...", "lib.f(1, 2)", []),
    ],
)
def test_an_argument_whose_parameter_moved_breaks(tmp_path, before, after, call, expected):
    found = texts(tmp_path, before, after, call)
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True))


@pytest.mark.parametrize("keyword", ["metaclass=ABCMeta", "metaclass=abc.ABCMeta"])
def test_an_abstract_base_class_does_not_hide_the_constructor(tmp_path, keyword):
    base = f"import abc\nfrom abc import ABCMeta\nclass B({keyword}):\n  def run(self): ...\n"
    constructor = "class C(B):\n  def __init__(self, *, size): ...\n"
    assert texts(tmp_path, base, base + constructor, "lib.C(length=1)") == [
        "C(*, size) has no parameter 'length'"
    ]


def test_another_metaclass_may_make_instances_as_it_likes(tmp_path):
    made = "class M(type): ...\nclass C(metaclass=M):\n  def __init__(self, *, size): ...\n"
    assert texts(tmp_path, made, made, "lib.C(length=1)") == []
