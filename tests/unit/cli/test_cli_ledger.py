"""`ledger merge` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli.app import main
from harness.errors import EXIT_BAD_INPUT, EXIT_OK
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Outcome, State, Tier


def shard(folder: Path, key: str) -> Path:
    with Ledger.open(folder) as ledger:
        ref = ledger.artifacts.put(f"lock of {key}".encode(), "lock.txt")
        ledger.record(
            Outcome(
                key=key * 64,
                check="resolve",
                tier=Tier.STATIC,
                state=State.COMPLETED,
                evidence=Evidence.STATIC,
                facets={},
                measurements={"resolved": True},
                artifacts=(ref,),
                started=1.0,
                finished=2.0,
            )
        )
    return folder


def call(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["--root", str(root), "ledger", "merge", *arguments])
    seen = capsys.readouterr()
    return int(stopped.value.code or 0), seen.out, seen.err


def test_shards_come_together_by_key_with_their_files_and_twice_is_once(tmp_path, capsys):
    first, second = shard(tmp_path / "a", "a"), shard(tmp_path / "b", "b")
    code, out, _ = call(capsys, tmp_path, str(first), str(second / "ledger.sqlite3"))
    assert code == EXIT_OK
    assert out.count("1 outcomes added") == 2
    code, out, _ = call(capsys, tmp_path, str(first), "--json")
    assert json.loads(out)["added"] == {str(first): 0}
    with Ledger.open(tmp_path / ".npu-matrix") as ledger:
        outcome = ledger.get("b" * 64)
        assert ledger.artifacts.get(outcome.artifacts[0]).read_bytes() == b"lock of b"


def test_what_is_no_ledger_stops_before_anything_is_merged(tmp_path, capsys):
    good = shard(tmp_path / "a", "a")
    code, _, err = call(capsys, tmp_path, str(good), str(tmp_path / "nowhere"))
    assert code == EXIT_BAD_INPUT
    assert "there is no ledger here" in err
    assert not (tmp_path / ".npu-matrix").exists()
