"""Which classes can have attributes that their source code does not name, and missing attributes of others."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest
from source_zip import write_zip

from harness.compat.surface.api_surface import ApiSurface, Presence
from harness.compat.surface.dynamic_attributes import Openness, openness
from harness.compat.uses.package_uses import find_uses
from harness.compat.uses.use_check import check_uses


def of(body: str) -> Openness:
    [node] = ast.parse("class A:\n" + textwrap.indent(body, "  ")).body
    assert isinstance(node, ast.ClassDef)
    return openness(node)


@pytest.mark.parametrize(
    "body",
    [
        "def f(self): return self.__dict__['a']",
        "def f(self): self.__dict__['a'] = 1",
        "def f(self): return dict(self.__dict__), {**self.__dict__}, 'a' in self.__dict__",
        "def f(self):\n  for k, v in self.__dict__.items(): print(k, v)",
        "def f(self, other): setattr(other, self.name, 1)",
        "def f(self, name): setattr(self.model, name, 1)",
        "def f(self): setattr(self, 'a', 1)",
        "def f(self, module): module.__dict__.update(a=1)",
        "def __setstate__(self, state):\n  for k, v in state.items(): setattr(self, k, v)",
    ],
)
def test_reads_and_other_objects_leave_a_class_closed(body: str) -> None:
    assert of(body) is Openness.CLOSED


@pytest.mark.parametrize(
    "body",
    [
        "def f(self, **kw):\n  for k, v in kw.items(): setattr(self, k, v)",
        "def f(self, other): self.__dict__.update(other)",
        "def f(self, k, v): self.__dict__[k] = v",
        "def f(self, kw): self.__dict__ = kw",
        "@classmethod\ndef f(cls, k, v):\n  made = cls()\n  setattr(made, k, v)",
        "def f(self): change(self.__dict__)",
    ],
)
def test_computed_attribute_names_make_a_class_open_for_data(body: str) -> None:
    assert of(body) is Openness.DATA


@pytest.mark.parametrize(
    "body",
    [
        "def __getattr__(self, name): ...",
        "def f(self, name): setattr(self, name, lambda: 1)",
        "def f(self, name): setattr(self, name, wrap(name))",
        "@classmethod\ndef f(cls, name, function): setattr(cls, name, function)",
        "def f(self, name, function): setattr(type(self), name, function)",
        "for name in NAMES: setattr(B, name, 1)",
        "locals().update(B.__dict__)",
    ],
)
def test_code_that_may_add_methods_makes_a_class_open_for_everything(body: str) -> None:
    assert of(body) is Openness.ANY


LIB = """
from collections.abc import MutableMapping
class Bag(MutableMapping):
    def __init__(self, **kw):
        for k, v in kw.items(): setattr(self, k, v)
    def fill(self): ...
class Chosen:
    def __new__(cls): return object.__new__(pick())
class Leaf:
    size: int = 1
"""


def texts(tmp_path: Path, text: str) -> list[str]:
    user = ApiSurface(write_zip(tmp_path / "user.zip", {"user/a.py": text}))
    lib = ApiSurface(write_zip(tmp_path / "lib.zip", {"lib/__init__.py": LIB}))
    found = check_uses(find_uses(user, {"lib"}).uses, {"lib": ("lib 1", lib)}, user)
    return [one.text for one in found if one.breaks]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The class is open for data, not for methods.
        ("def f(bag: lib.Bag): bag.gone()", ["lib.Bag has no gone"]),
        ("def f(bag: lib.Bag): print(bag.gone)", []),
        ("def f(bag: lib.Bag): bag.fill()", []),
        # The base class of the standard library has this name.
        ("def f(bag: lib.Bag): bag.setdefault(1, 2)", []),
        # The word in other code is no attribute of this class, unless a subclass may have it.
        ("def f(leaf: lib.Leaf, width): print(leaf.width)", ["lib.Leaf has no width"]),
        ("class Own(lib.Leaf):\n  width = 2\ndef f(leaf: lib.Leaf): print(leaf.width)", []),
        # A function that is assigned to the class sets it.
        ("def put(self: lib.Leaf): self.width = 1\ndef f(leaf: lib.Leaf): print(leaf.width)", []),
        # `__new__` may create an instance of another class.
        ("width = 1\nmade = lib.Chosen()\nprint(made.width)\nclass B:\n  width = 1", []),
        ("width = 1\nmade = lib.Leaf()\nprint(made.width)\nclass B:\n  width = 1", ["lib.Leaf has no width"]),
    ],
)
def test_words_in_the_text_count_only_for_objects_they_can_belong_to(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    assert texts(tmp_path, f"import lib\n{text}\n") == expected


def test_an_attribute_set_through_dict_exists(tmp_path: Path) -> None:
    source = "class A:\n  def f(self): self.__dict__['kept'] = 1\n"
    surface = ApiSurface(write_zip(tmp_path / "lib.zip", {"lib/__init__.py": source}))
    assert surface.find("lib.A.kept").presence is Presence.FOUND
    assert surface.find("lib.A.other").presence is Presence.MISSING
