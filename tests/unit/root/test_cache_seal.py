"""Only results that npu-matrix of this user computed are read from the cache."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from harness.cache_seal import SEAL_LENGTH, SECRET_BYTES, sealed, unsealed
from harness.code_graph.stored_facts import read_json, write_json
from harness.compat.uses.analysis_cache import AnalysisCache


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_a_sealed_text_is_read_under_its_name_only_and_no_edit_of_it_is(home):
    stored = sealed("name", "text")
    assert unsealed("name", stored) == "text"
    assert unsealed("other", stored) is None
    assert unsealed("nam", stored[:SEAL_LENGTH] + "etext") is None
    for position in range(len(stored)):
        edited = stored[:position] + chr(ord(stored[position]) ^ 1) + stored[position + 1 :]
        assert unsealed("name", edited) is None
    assert unsealed("name", "") is None
    assert unsealed("name", "\u00e9" * 80) is None


def test_what_another_user_sealed_is_not_read(home, monkeypatch):
    stored = sealed("name", "text")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "other"))
    assert unsealed("name", stored) is None
    (secret,) = (home / "other").rglob("cache-secret")
    assert secret.stat().st_mode & 0o077 == 0


def test_a_secret_in_the_current_folder_is_not_used(home, monkeypatch):
    planted = home / "relative" / ".local" / "state" / "npu-matrix" / "cache-secret"
    planted.parent.mkdir(parents=True)
    planted.write_bytes(b"\0" * SECRET_BYTES)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "relative/.local/state"))
    forged = sealed("name", "text")
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", "relative")
    monkeypatch.setenv("XDG_STATE_HOME", "relative/.local/state")
    assert unsealed("name", forged) is None
    assert unsealed("name", sealed("name", "text")) == "text"


def test_without_a_place_for_the_secret_results_count_in_this_process_only(home, monkeypatch):
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    assert unsealed("name", sealed("name", "text")) == "text"


def test_an_analysis_result_that_was_edited_in_the_cache_is_computed_again(home):
    cache = AnalysisCache(folder=home / "pairs", code="1")
    assert cache.get("findings", ["a"], list[str], lambda: ["missing"]) == ["missing"]
    with sqlite3.connect(home / "pairs" / "files.sqlite") as database:
        database.execute("UPDATE results SET value = replace(value, '[\"missing\"]', '[]')")
    assert cache.get("findings", ["a"], list[str], lambda: ["missing"]) == ["missing"]
    with sqlite3.connect(home / "pairs" / "files.sqlite") as database:
        database.execute("UPDATE results SET value = '[]'")
    assert cache.get("findings", ["a"], list[str], lambda: ["missing"]) == ["missing"]


def test_facts_about_code_that_were_edited_or_renamed_in_the_cache_are_not_read(home):
    write_json(home / "reached-1.json", {"reached": {}})
    assert read_json(home / "reached-1.json") == {"reached": {}}
    (home / "reached-1.json").rename(home / "reached-2.json")
    assert read_json(home / "reached-2.json") == {}
    (home / "reached-1.json").write_text('{"reached": {}}')
    assert read_json(home / "reached-1.json") == {}
