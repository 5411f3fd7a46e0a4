"""`knowledge update` and `knowledge status`, against a package index on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.exceptions import Abort
from click.testing import CliRunner
from package_server import PackageServer, index, server

from harness.cli.knowledge_command import command
from harness.compat.knowledge import pack_at_hand
from harness.compat.knowledge.pack_at_hand import user_pack_file
from harness.compat.knowledge.pack_file import PackagedFiles, PackedRelease, write_pack
from harness.compat.knowledge.surface_pack import InRelease, SurfacePack
from harness.errors import HarnessError
from harness.settings import load_settings

__all__ = ["index", "server"]
Knowledge = Callable[..., tuple[int, Any]]


@pytest.fixture
def knowledge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Knowledge:
    # Without the shipped pack, which an update would start from.
    monkeypatch.setattr(pack_at_hand, "shipped_pack_file", lambda: tmp_path / "none.pack")

    def run(*arguments: str) -> tuple[int, Any]:
        settings = load_settings({"cache": str(tmp_path / "cache")}, {}, tmp_path)
        found = CliRunner().invoke(command, [*arguments, "--json"], obj=settings, standalone_mode=False)
        if found.exception:
            raise found.exception
        return int(found.return_value), json.loads(found.stdout)

    return run


@pytest.fixture
def releases(index: Any, server: PackageServer) -> Any:
    """Two releases of `lib` on the index."""
    index.folder = server.folder / "lib"
    index.folder.mkdir()
    index.add("lib", "1.0", files={"lib/core.py": "def old(): ...\n"})
    index.add("lib", "1.1", "dep>=2", files={"lib/core.py": "def new(a, b=1): ...\n"})
    return index


def test_update_reads_what_the_index_has_and_status_shows_it(
    knowledge: Knowledge, releases: Any, tmp_path: Path
) -> None:
    code, found = knowledge("update", "lib")
    assert (code, found["updates"][0]["added"]) == (0, ["1.0", "1.1"])
    pack = SurfacePack(user_pack_file(tmp_path / "cache"))
    assert pack.history("lib", "lib.core.new").in_release("1.0") is InRelease.MISSING
    assert pack.history("lib", "lib.core.new").in_release("1.1") is InRelease.FOUND
    code, shown = knowledge("status")
    assert (code, shown["digest"], shown["newest"]) == (0, found["digest"], "2025-03-01")
    assert [one["package"] for one in shown["packages"]] == ["lib"]


def test_a_second_update_reads_only_what_is_new_and_has_the_digest_of_a_fresh_pack(
    knowledge: Knowledge, releases: Any, server: PackageServer, tmp_path: Path
) -> None:
    knowledge("update", "lib")
    before = server.sent
    releases.add("lib", "1.2", files={"lib/core.py": "def newest(): ...\n"})
    _code, found = knowledge("update", "lib")
    assert found["updates"][0]["added"] == ["1.2"]
    assert server.sent - before < before
    _code, fresh = knowledge("update", "lib", "--output", str(tmp_path / "fresh.pack"))
    assert fresh["digest"] == found["digest"]


def test_an_update_begins_with_the_shipped_pack_after_an_upgrade(
    knowledge: Knowledge, releases: Any, tmp_path: Path
) -> None:
    """The pack in the cache has no `other`, which the new shipped one has."""
    knowledge("update", "lib")
    shipped = {"other": PackagedFiles(releases=(PackedRelease(version="1"),), contents={"1": {}})}
    digest = write_pack(tmp_path / "none.pack", shipped)
    assert [one["package"] for one in knowledge("status")[1]["packages"]] == ["other"]
    knowledge("update", "lib")
    assert [one["package"] for one in knowledge("status")[1]["packages"]] == ["lib", "other"]
    assert SurfacePack(user_pack_file(tmp_path / "cache")).began_with == digest
    # The next update adds to the user's own.
    assert knowledge("update", "lib")[1]["updates"][0]["added"] == []


def test_an_interrupted_update_keeps_what_it_read(
    knowledge: Knowledge, releases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.sources.packages.release_fetcher import ReleaseFetcher

    fetch = ReleaseFetcher.sources_of_files

    def interrupted(self: Any, package: str, version: str, files: Any) -> Any:
        if version == "1.0":
            raise KeyboardInterrupt
        return fetch(self, package, version, files)

    monkeypatch.setattr(ReleaseFetcher, "sources_of_files", interrupted)
    with pytest.raises((KeyboardInterrupt, Abort)):
        knowledge("update", "lib")
    monkeypatch.setattr(ReleaseFetcher, "sources_of_files", fetch)
    assert [one.version for one in SurfacePack(user_pack_file(tmp_path / "cache")).releases("lib")] == ["1.1"]
    code, found = knowledge("update", "lib")
    assert (code, found["updates"][0]["added"]) == (0, ["1.0"])


def test_what_cannot_be_read_is_told(knowledge: Knowledge, releases: Any) -> None:
    (releases.folder / "lib-1.2-py3-none-any.whl").write_bytes(b"not a wheel")
    code, found = knowledge("update", "lib", "absent-package")
    assert code == 4
    assert found["updates"][0]["unread"] == ["1.2"]
    assert "no package index has absent-package" in found["updates"][1]["problem"]
    assert found["packages"][0]["unread"]["1.2"]


def test_without_an_index_or_time_nothing_is_written(
    knowledge: Knowledge, releases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    with pytest.raises(HarnessError, match="no release was read"):
        knowledge("update", "lib")
    with pytest.raises(HarnessError, match="is not a date"):
        knowledge("update", "lib", "--since", "yesterday")


def test_status_of_a_damaged_pack_says_so(knowledge: Knowledge, releases: Any, tmp_path: Path) -> None:
    knowledge("update", "lib")
    file = user_pack_file(tmp_path / "cache")
    file.write_bytes(file.read_bytes()[:3000])
    code, found = knowledge("status")
    assert code == 3
    assert "releases were not compared" in found["problem"]
