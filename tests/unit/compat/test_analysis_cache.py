"""Uses are cached by the text of each file: for the next version of a package only changed files are parsed."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from source_zip import write_zip

from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.analysis_cache import AnalysisCache, SqliteCache
from harness.compat.uses.package_pairs import Package
from harness.compat.uses.package_uses import find_uses
from harness.sources.python_syntax import parse_source

USER = {
    "user/__init__.py": "",
    "user/a.py": "import torch\nfrom user import b\ntorch.add(1)\n",
    "user/b.py": "import torch_npu\ntry:\n    torch_npu.npu_cast(1, x=2)\nexcept AttributeError:\n    pass\n",
    "user/broken.py": "import torch(\n",
}


def package(path: Path, files: Mapping[str, str]) -> Package:
    return Package(name="user", version="1", file=write_zip(path, files))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The texts that are parsed, in order."""
    seen: list[bytes] = []

    def counting(source: bytes) -> Any:
        seen.append(source)
        return parse_source(source)

    monkeypatch.setattr("harness.compat.uses.package_uses.parse_source", counting)
    return seen


def test_a_new_version_parses_only_changed_files(tmp_path: Path, parsed: list[bytes]) -> None:
    analysis_cache = AnalysisCache(folder=tmp_path / "pairs", code="1")
    package(tmp_path / "1.zip", USER).uses(analysis_cache)
    assert len(parsed) == 3
    newer = package(tmp_path / "2.zip", {**USER, "user/a.py": "import torch\ntorch.sub(1)\n"})
    found = newer.uses(analysis_cache)
    assert parsed[3:] == [b"import torch\ntorch.sub(1)\n"]
    assert found == find_uses(
        newer.surface, {"ray", "tensordict", "torch", "torch_npu", "transformers", "vllm"}
    )
    assert {use.target for use in found.uses} >= {"torch.sub", "torch_npu"}


def test_other_analysis_code_does_not_use_cached_results(tmp_path: Path, parsed: list[bytes]) -> None:
    for code in ("1", "2"):
        package(tmp_path / "1.zip", USER).uses(AnalysisCache(folder=tmp_path / "pairs", code=code))
    assert len(parsed) == 6


def test_one_parse_finds_uses_calls_and_imports(tmp_path: Path) -> None:
    found = find_uses(ApiSurface(package(tmp_path / "1.zip", USER).file), {"torch", "torch_npu"})
    [call] = found.calls
    assert (call.operator, call.arguments.keywords, call.guarded) == ("npu_cast", ("x",), True)
    assert found.imports == {"user.a": ("user.b",), "user.b": (), "user.broken": ()}
    assert found.unparsed == ("user/broken.py",)


@pytest.mark.parametrize("damage", ["not a database", "another table", "a folder"])
def test_a_damaged_cache_file_is_an_empty_cache(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "files.sqlite"
    if damage == "not a database":
        file.write_bytes(b"\xff{" * 4000)
    elif damage == "a folder":
        file.mkdir()
    else:
        with sqlite3.connect(file) as database:
            database.execute("CREATE TABLE results (x)")
        database.close()
    with SqliteCache(file, "1") as cache:
        assert cache.get(["a"]) == {}
        cache.put({"a": "1"})
    with SqliteCache(file, "1") as cache:
        assert cache.get(["a"]) == ({"a": "1"} if damage == "not a database" else {})


def test_results_of_different_code_are_separate(tmp_path: Path) -> None:
    texts = {str(number): str(number) for number in range(1200)}
    with SqliteCache(tmp_path / "files.sqlite", "one") as cache:
        cache.put(texts)
        assert cache.get(texts) == texts
    with SqliteCache(tmp_path / "files.sqlite", "two") as cache:
        assert cache.get(texts) == {}


def test_a_cache_with_a_damaged_page_is_replaced(tmp_path):
    file = tmp_path / "files.sqlite"
    texts = {f"key {number}": "x" * 900 for number in range(40)}
    with SqliteCache(file, "code") as cache:
        cache.put(texts)
    data = file.read_bytes()
    file.write_bytes(data[:8192] + bytes([255]) * (len(data) - 8192))
    with SqliteCache(file, "code") as cache:
        assert cache.get(texts) == {}
    with SqliteCache(file, "code") as cache:
        cache.put(texts)
        assert cache.get(texts) == texts
