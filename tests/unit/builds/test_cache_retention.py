from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.builds.cleanup.cache_retention import STORES, judge_cache, judge_state
from harness.builds.cleanup.cleanup_candidates import CleanupCandidate, CleanupPolicy, remove_candidate

DAY = 86400.0


def entry(path: Path, *, days: float, size: int = 1000) -> Path:
    """A folder with one file, or a file if the name has a suffix, last used `days` ago."""
    file = path if path.suffix else path / "file"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)
    then = time.time() - days * DAY
    for one in {file, path}:
        os.utime(one, (then, then))
    return path


def parts(found: tuple[CleanupCandidate, ...]) -> dict[tuple[str, bool], CleanupCandidate]:
    return {(one.name, one.removable): one for one in found}


@pytest.mark.parametrize("store", STORES)
def test_of_each_store_what_was_not_used_for_long_goes(tmp_path: Path, store: str) -> None:
    old, new = entry(tmp_path / store / "old", days=30), entry(tmp_path / store / "new", days=1, size=7)
    found = parts(judge_cache(tmp_path, CleanupPolicy()))
    assert set(found) == {(store, True), (store, False)}
    going, staying = found[store, True], found[store, False]
    assert (going.paths, going.bytes_freed) == ((old,), 1000)
    assert going.reason == f"1 of 2 {STORES[store]}: not used for 14.0 days"
    assert (staying.paths, staying.bytes_freed) == ((new,), 7)
    assert remove_candidate(going, None) == ""
    assert (old.exists(), new.exists()) == (False, True)


def test_a_file_of_answers_counts_from_when_it_was_last_read(tmp_path: Path) -> None:
    file = entry(tmp_path / "pairs/files.sqlite", days=30)
    os.utime(file, (time.time() - DAY, time.time() - 30 * DAY))
    assert set(parts(judge_cache(tmp_path, CleanupPolicy()))) == {("pairs", False)}
    os.utime(file, (time.time() - 30 * DAY, time.time() - 30 * DAY))
    [going] = judge_cache(tmp_path, CleanupPolicy())
    assert remove_candidate(going, None) == ""
    assert not file.exists()


def test_the_runtime_of_an_outcome_stays_unless_everything_goes(tmp_path: Path) -> None:
    entry(tmp_path / "sim/needed", days=30)
    policy = CleanupPolicy(runtimes={"needed"})
    assert set(parts(judge_cache(tmp_path, policy))) == {("sim", False)}
    assert set(parts(judge_cache(tmp_path, replace(policy, everything=True)))) == {("sim", True)}


def test_nothing_goes_while_a_run_uses_the_cache(tmp_path: Path) -> None:
    entry(tmp_path / "sources/old", days=30)
    [found] = judge_cache(tmp_path, CleanupPolicy(everything=True, cache_in_use=True))
    assert not found.removable
    assert "a running process" in found.reason


def test_packages_fetched_for_images_are_one_entry(tmp_path: Path) -> None:
    packages = entry(tmp_path / "uv/archive", days=30).parent
    os.utime(packages, (time.time() - 30 * DAY,) * 2)
    [going] = judge_cache(tmp_path, CleanupPolicy())
    assert (going.name, going.paths) == ("uv", (packages,))


def test_folders_of_dead_tasks_go_with_time_and_not_while_a_run_holds_the_state(tmp_path: Path) -> None:
    old = entry(tmp_path / "work/0123456789abcdef-1", days=30)
    log = entry(tmp_path / "work/0123456789abcdef-1.log", days=30)
    entry(tmp_path / "work/fedcba9876543210-1", days=1)
    entry(tmp_path / "ledger.sqlite3", days=300)
    assert {one.removable for one in judge_state(tmp_path, CleanupPolicy(), in_use=True)} == {False}
    found = parts(judge_state(tmp_path, CleanupPolicy(), in_use=False))
    assert set(found) == {("work", True), ("work", False)}
    assert found["work", True].paths == (old, log)
    assert remove_candidate(found["work", True], None) == ""
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["file", "ledger.sqlite3"]


def test_an_empty_folder_has_nothing(tmp_path: Path) -> None:
    assert judge_cache(tmp_path / "none", CleanupPolicy()) == ()
    assert judge_state(tmp_path / "none", CleanupPolicy(), in_use=False) == ()
    assert not (tmp_path / "none").exists()
