"""`cleanup` from the command line, over a cache folder; no container engine is spoken to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.builds.ownership.owner_labels import ProcessView
from harness.builds.ownership.temporary_folders import OWNER_FILE, make_temporary_folder
from harness.cli.app import main
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Outcome, State, Tier


@pytest.fixture
def cleanup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NPU_MATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("harness.workspace.results.cleanup_search.known_engines", lambda: ())
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["cleanup", *arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run


def environment(root: Path, digest: str, days: float, *, finished: bool = True) -> Path:
    folder = root / "cache/cells" / digest
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x" * 3_000_000)
    if finished:
        (folder / "finished.json").write_text("{}")
    then = time.time() - days * 86400
    for path in (*folder.iterdir(), folder):
        os.utime(path, (then, then))
    return folder


def refer(root: Path, name: str, **more: object) -> None:
    with Ledger.open(root / ".npu-matrix") as ledger:
        ledger.record(
            Outcome(
                key="k",
                check="environment",
                tier=Tier.BUILD,
                state=State.COMPLETED,
                evidence=Evidence.CPU,
                facets={},
                measurements={"digest": name, **more},
            )
        )


def test_only_what_nobody_needs_goes_and_a_dry_run_removes_nothing(tmp_path: Path, cleanup: Any) -> None:
    old, kept = environment(tmp_path, "old", 30), environment(tmp_path, "needed", 30)
    half = environment(tmp_path, "half", 0, finished=False)
    refer(tmp_path, "needed")
    code, said = cleanup("--dry-run")
    assert code == 0
    assert "would remove environment old (3 MiB): no outcome needs it" in said
    assert "would keep environment needed (3 MiB): an outcome needs it" in said
    assert "would remove 2 of 3, 6 MiB; 3 MiB kept" in said
    assert old.is_dir()
    assert half.is_dir()
    code, said = cleanup()
    assert code == 0
    assert "removed 2 of 3, 6 MiB" in said
    assert [old.exists(), half.exists(), kept.exists()] == [False, False, True]
    assert "removed 0 of 1" in cleanup()[1]
    assert "removed 1 of 1" in cleanup("--all")[1]


def test_an_outcome_of_another_form_keeps_nothing_and_stops_nothing(tmp_path: Path, cleanup: Any) -> None:
    environment(tmp_path, "old", 30)
    kept = environment(tmp_path, "needed", 30)
    refer(tmp_path, "needed", container=["x"], runtime=3)
    refer(tmp_path, "x", digest=[1], container="x", runtime={})
    code, said = cleanup()
    assert (code, kept.exists()) == (0, True), said
    assert "removed 1 of 2" in said


def test_the_span_is_the_users_and_a_wrong_one_is_named(tmp_path: Path, cleanup: Any) -> None:
    folder = environment(tmp_path, "recent", 2)
    assert "removed 0 of 1" in cleanup()[1]
    assert folder.is_dir()
    code, said = cleanup("--older-than", "soon")
    assert code == 2
    assert "duration" in said
    cleanup("--older-than", "1d")
    assert not folder.exists()


def test_json_tells_what_was_found_and_why(tmp_path: Path, cleanup: Any) -> None:
    environment(tmp_path, "old", 30)
    code, said = cleanup("--json")
    report = json.loads(said)
    assert code == 0
    assert report["schema"] == {"name": "npu-matrix.cleanup", "version": 1}
    [found] = report["found"]
    assert (found["kind"], found["name"], found["goes"], found["removed"]) == (
        "environment",
        "old",
        True,
        True,
    )
    assert found["bytes"] == 3_000_002


def test_the_folder_of_a_killed_run_goes_and_that_of_a_living_one_stays(tmp_path: Path, cleanup: Any) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    dead = ProcessView().owner(ended.pid)
    ended.communicate(b"\n")
    left, used = make_temporary_folder(), make_temporary_folder()
    (left / OWNER_FILE).write_text(str(dead))
    code, said = cleanup("--dry-run")
    assert (code, left.is_dir()) == (0, True)
    assert f"would remove scratch {left} (0 MiB): its owner, process {ended.pid}, is dead" in said
    assert f"would keep scratch {used} (0 MiB): its owner, process {os.getpid()}, is alive" in said
    assert "removed 1 of 2" in cleanup()[1]
    assert (left.exists(), used.is_dir()) == (False, True)


def test_whatever_the_cache_and_the_state_folder_keep_is_told_with_its_size(
    tmp_path: Path, cleanup: Any
) -> None:
    then = time.time() - 30 * 86400
    for name in (
        "cache/pairs/files.sqlite",
        "cache/sources/text-1-verl-0.9.1/text.zip",
        ".npu-matrix/work/k.log",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * (2 << 20))
        for path in (file, file.parent):
            os.utime(path, (then, then))
    (tmp_path / "cache/users.lock").touch()
    report = json.loads(cleanup("--json", "--dry-run")[1])
    assert [(one["kind"], one["name"], one["goes"], one["bytes"]) for one in report["found"]] == [
        ("cache", "pairs", True, 2 << 20),
        ("cache", "sources", True, 2 << 20),
        ("state", "work", True, 2 << 20),
    ]
    assert "removed 3 of 3, 6 MiB; 0 MiB kept" in cleanup()[1]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["users.lock"]


def test_an_empty_cache_is_left_as_it_is(tmp_path: Path, cleanup: Any) -> None:
    assert cleanup()[0] == 0
    assert not (tmp_path / ".npu-matrix").exists()
    assert not (tmp_path / "cache").exists()
