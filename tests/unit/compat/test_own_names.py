"""What patches break within the package that they change."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_zip import write_zip

from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.own_names import broken_own_names

FILES = {
    "lib/__init__.py": "from .core import make\n",
    "lib/core.py": "def make(a): ...\nclass Model:\n    def run(self, x): ...\n",
    "lib/user.py": "from lib.core import make, Model\ndef f():\n    make(1)\n    model = Model()\n    model.run(1)\n",
    "lib/broken.py": "from lib.core import never\n",
    "lib/lazy/__init__.py": "def __getattr__(name): ...\n",
    "lib/either.py": "try:\n    from fast import Meta\nexcept ImportError:\n    class Meta: ...\n",
}
INNOCENT = {
    "lib/core.py": FILES["lib/core.py"] + "def more(): ...\n",
    "lib/user.py": FILES["lib/user.py"] + "from lib.lazy import anything\n",
    "lib/new.py": "from lib.core import make\nmake(2)\n",
    "lib/broken.py": FILES["lib/broken.py"] + "x = 1\n",
    "lib/other.py": "from lib.either import Meta\nMeta.concat()\n",
}


def texts(folder: Path, changes: dict[str, str | None]) -> list[str]:
    file = write_zip(folder / "lib.zip", FILES)
    after = {name: None if text is None else text.encode() for name, text in changes.items()}
    found = broken_own_names(ApiSurface(file), ApiSurface(file, after), changes, "lib 1")
    assert all(one.introduced and one.breaks for one in found)
    return [f"{one.file}:{one.line}: {one.text}" for one in found]


@pytest.mark.parametrize("file", INNOCENT)
def test_an_innocent_change_breaks_nothing_even_in_a_package_that_is_broken(
    tmp_path: Path, file: str
) -> None:
    assert texts(tmp_path, {file: INNOCENT[file]}) == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("lib/new.py", "from lib.core import absent\n", ["lib/new.py:1: lib.core has no absent"]),
        ("lib/new.py", "from .core import absent\n", ["lib/new.py:1: lib.core has no absent"]),
        ("lib/new.py", "from lib.gone import x\n", ["lib/new.py:1: lib has no gone"]),
        ("lib/new.py", "import lib.lazy.gone\n", ["lib/new.py:1: lib.lazy has no gone"]),
        ("lib/new.py", "from lib.lazy.gone import x\n", ["lib/new.py:1: lib.lazy has no gone"]),
        ("lib/new.py", "def f(:\n", ["lib/new.py:1: this is no Python: invalid syntax"]),
        (
            "lib/core.py",
            "def make(a): ...\n",
            ["lib/user.py:1: lib.core has no Model"],
        ),
        (
            "lib/core.py",
            FILES["lib/core.py"].replace("make(a)", "make(a, b)"),
            ["lib/user.py:3: make(a, b) misses b"],
        ),
        (
            "lib/core.py",
            FILES["lib/core.py"].replace("run(self, x)", "run(self)"),
            ["lib/user.py:5: run() takes 0 positional arguments, but 1 are passed"],
        ),
        (
            "lib/core.py",
            None,
            [f"lib/{name}.py:1: lib has no core" for name in ("__init__", "broken", "user")],
        ),
    ],
)
def test_what_a_patch_breaks_is_found_where_it_is_used(
    tmp_path: Path, file: str, text: str | None, expected: list[str]
) -> None:
    assert texts(tmp_path, {file: text}) == expected
