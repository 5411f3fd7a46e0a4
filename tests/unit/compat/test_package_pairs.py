"""A pair of packages is analysed once for its content; for patches only the changed files are analysed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from source_zip import write_zip

from harness.compat.uses import package_pairs
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.package_pairs import ConsumerAnalysis, Package, PairResult
from harness.compat.uses.use import Use
from harness.compat.uses.use_visitor import uses_in_file
from harness.sources.python_syntax import parse_source

LIB = {"lib/__init__.py": "def make(size): ...\n"}
USER = {
    "user/__init__.py": "",
    "user/a.py": "from lib import make\nmake()\n",
    "user/b.py": "def f():\n    from lib import gone\n",
}


def package(path: Path, name: str, files: Mapping[str, str], **changes: str) -> Package:
    return Package(name=name, version="1", file=write_zip(path, files), changes=changes)


@pytest.fixture
def analysed_files(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """For each call of `check_uses`, the files whose uses are checked."""
    seen: list[set[str]] = []
    real = package_pairs.check_uses

    def counting(uses: Any, *rest: Any) -> Any:
        seen.append({use.file for use in uses})
        return real(uses, *rest)

    monkeypatch.setattr(package_pairs, "check_uses", counting)
    monkeypatch.setattr(package_pairs, "PROVIDERS", frozenset({"lib"}))
    return seen


def check_pair(folder: Path, user: Package, lib: Package, code: str = "1") -> PairResult:
    analysis = ConsumerAnalysis(user, AnalysisCache(folder=folder / "pairs", code=code))
    return analysis.check_provider(lib, None)


def test_a_pair_is_analysed_once_regardless_of_its_path(
    tmp_path: Path, analysed_files: list[set[str]]
) -> None:
    lib = package(tmp_path / "lib.zip", "lib", LIB)
    first = check_pair(tmp_path, package(tmp_path / "a.zip", "user", USER), lib)
    again = check_pair(tmp_path, package(tmp_path / "copy.zip", "user", USER), lib)
    assert first == again
    assert [one.text for one in first.findings] == ["make(size) misses size", "lib has no gone"]
    assert len(analysed_files) == 1


@pytest.mark.parametrize("change", ["user", "lib", "code"])
def test_another_consumer_provider_or_code_is_analysed_again(
    tmp_path: Path, analysed_files: list[set[str]], change: str
) -> None:
    lib, user = package(tmp_path / "l.zip", "lib", LIB), package(tmp_path / "u.zip", "user", USER)
    check_pair(tmp_path, user, lib)
    if change == "user":
        user = package(tmp_path / "u2.zip", "user", {**USER, "user/c.py": "import lib\n"})
    elif change == "lib":
        lib = package(tmp_path / "l2.zip", "lib", {"lib/__init__.py": "def make(): ...\ngone = 1\n"})
    found = check_pair(tmp_path, user, lib, "2" if change == "code" else "1")
    assert len(analysed_files) == 2
    assert bool(found.findings) is (change != "lib")


def test_a_damaged_result_is_computed_again(tmp_path: Path, analysed_files: list[set[str]]) -> None:
    lib, user = package(tmp_path / "l.zip", "lib", LIB), package(tmp_path / "u.zip", "user", USER)
    first = check_pair(tmp_path, user, lib)
    for file in (tmp_path / "pairs").iterdir():
        file.write_bytes(b"\xff{")
    assert check_pair(tmp_path, user, lib) == first
    assert len(analysed_files) == 2


def test_patches_analyse_only_the_files_they_change(tmp_path: Path, analysed_files: list[set[str]]) -> None:
    lib, plain = package(tmp_path / "l.zip", "lib", LIB), package(tmp_path / "u.zip", "user", USER)
    check_pair(tmp_path, plain, lib)
    fixed = Package(
        name="user", version="1", file=plain.file, changes={"user/a.py": "from lib import make\nmake(1)\n"}
    )
    assert [one.text for one in check_pair(tmp_path, fixed, lib).findings] == ["lib has no gone"]
    broken = Package(
        name="user", version="1", file=plain.file, changes={"user/a.py": "import lib\nlib.away()\n"}
    )
    texts = {one.text for one in check_pair(tmp_path, broken, lib).findings}
    assert texts == {"lib has no away", "lib has no gone"}
    assert analysed_files[1:] == [{"user/a.py"}, {"user/a.py"}]


def test_imported_modules_exclude_guarded_and_function_imports(tmp_path: Path) -> None:
    files = {
        "user/__init__.py": "",
        "user/entry.py": "from user import a\ntry:\n    import user.b\nexcept ImportError:\n    pass\n",
        "user/a.py": "def f():\n    import user.c\n",
        "user/b.py": "",
        "user/c.py": "",
    }
    user = package(tmp_path / "u.zip", "user", files)
    analysis = ConsumerAnalysis(user, AnalysisCache(folder=tmp_path / "pairs", code="1"))
    assert analysis.imported_modules(("user.entry", "user.absent")) == {"user", "user.entry", "user.a"}


REACHES = """
import lib
from lib import make as build, Base
class A(Base):
    def __init__(self, size: int, *rest): super().__init__(size)
    def f(self, a, /, b, *, c=1, **k): self.g(a, *b, **k)
try:
    lib.make(1, size=2)
except AttributeError:
    lib.other = None
"""


def test_stored_uses_equal_the_computed_ones(tmp_path: Path) -> None:
    tree = parse_source(REACHES.encode())
    assert tree is not None
    uses = uses_in_file(tree, REACHES.encode(), "user.a", "user/a.py", {"lib"})
    assert {use.kind for use in uses} >= {"import", "subclass", "super", "override", "call", "patch"}
    cache = AnalysisCache(folder=tmp_path, code="1")
    cache.get("uses", [], tuple[Use, ...], lambda: uses)
    assert cache.get("uses", [], tuple[Use, ...], tuple) == uses
