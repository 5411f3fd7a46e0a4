"""A damaged ledger loses only what is damaged: by name, never for good, and it never says something else."""

from __future__ import annotations

import errno
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from make_outcome import make_outcome

from benchmarks.ledger_damage import LedgerContent, damage_of, flip_bits
from harness.errors import InfrastructureError
from harness.ledger import database
from harness.ledger.plan_record import PlanEntry, PlanRecord
from harness.ledger.run_record import Disposition
from harness.ledger.store import FILE_NAME, Ledger
from harness.outcome import Outcome, Status, Tier

PAGE = 4096
FLIPS = 80


def one_outcome(key: str, run_id: str, *, good: bool = True) -> Outcome:
    return make_outcome(
        key,
        check="resolve",
        facets={"pins": "abc"},
        measurements={"good": good, "text": key * 60},
        run_id=run_id,
    )


def one_run(ledger: Ledger, *, outcomes: dict[str, bool]) -> str:
    entries = tuple(
        PlanEntry(cell_id=f"cell-{key}", check="resolve", tier=Tier.STATIC, question="?", key=key)
        for key in outcomes
    )
    run_id = ledger.begin_run(PlanRecord(entries=entries), ["run"], {})
    for key, good in outcomes.items():
        ledger.record(one_outcome(key, run_id, good=good))
    left = Disposition(cell_id="cell-left", check="build", key="k", status=Status.BLOCKED, reason="no")
    ledger.record_dispositions(run_id, [left])
    ledger.finish_run(run_id, 0)
    return run_id


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    """Two runs: every key passed in the first one; in the second one those with an even number failed."""
    with Ledger.open(tmp_path / "whole") as ledger:
        one_run(ledger, outcomes={f"key-{n}": True for n in range(16)})
        one_run(ledger, outcomes={f"key-{n}": False for n in range(0, 16, 2)})
    return tmp_path / "whole" / FILE_NAME


@pytest.fixture
def before(ledger_file: Path) -> LedgerContent:
    with Ledger.open(ledger_file.parent) as ledger:
        return LedgerContent.of(ledger)


def damaged(folder: Path, data: bytes) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / FILE_NAME).write_bytes(data)
    return folder


def test_a_flipped_bit_changes_no_verdict_and_what_it_loses_is_named_and_can_be_repeated(
    ledger_file: Path,
) -> None:
    found = flip_bits(ledger_file, FLIPS, seed=7)
    for bit, damage in found:
        defects = (damage.unusable, damage.unnamed, damage.wrong, damage.not_repeated)
        assert not any(defects), (bit, defects)
    assert any(damage.lost for _, damage in found), "no flip hit a row"
    assert sum(damage.lost for _, damage in found) < 4 * FLIPS, "a flip loses more than the damaged rows"


def test_a_ledger_that_was_cut_off_keeps_what_is_before_the_cut(
    tmp_path: Path, ledger_file: Path, before: LedgerContent
) -> None:
    data = ledger_file.read_bytes()
    for pages in range(len(data) // PAGE):
        for more in (0, PAGE // 2):
            damage = damage_of(before, damaged(tmp_path / "cut", data[: pages * PAGE + more]))
            assert not damage.unusable
            assert not damage.wrong, (pages, more, damage.wrong)


def test_a_page_that_was_not_written_or_that_is_of_another_time_changes_no_verdict(
    tmp_path: Path, ledger_file: Path
) -> None:
    old = ledger_file.read_bytes()
    with Ledger.open(ledger_file.parent) as ledger:
        one_run(ledger, outcomes={f"key-{n}": True for n in range(0, 16, 3)})
        after = LedgerContent.of(ledger)
    new = ledger_file.read_bytes()
    for seed, start in enumerate(range(0, len(new), PAGE)):
        for content in (bytes(PAGE), random.Random(seed).randbytes(PAGE), old[start : start + PAGE]):
            mixed = new[:start] + content + new[start + len(content) :]
            damage = damage_of(after, damaged(tmp_path / "mixed", mixed))
            assert not damage.unusable, (start, damage.unusable)
            assert not [one for one in damage.wrong if not one.startswith("run ")], (start, damage.wrong)


def test_the_next_run_repeats_a_lost_outcome_and_no_older_one_takes_its_place(
    tmp_path: Path, ledger_file: Path
) -> None:
    data = ledger_file.read_bytes()
    text = b'"good":false,"text":"key-4key-4'
    assert data.count(text) == 1
    folder = damaged(tmp_path / "row", data.replace(text, text.replace(b"false", b"fals%")))
    with Ledger.open(folder) as ledger:
        (notice,) = ledger.notices
        assert "the outcome of resolve on cell-key-4 with key key-4" in notice.why
        assert ledger.get("key-4") is None, "the pass of the first run is not its state"
        assert ledger.latest(["key-4"]) == {}
        assert ledger.history(key="key-4") == ()
        assert len(ledger.history()) == 23
    with Ledger.open(folder) as ledger:
        assert ledger.notices == ()
        assert ledger.get("key-4") is None, "the lost row is remembered"
        run_id = one_run(ledger, outcomes={"key-4": False})
        found = ledger.get("key-4")
        assert found is not None
        assert found.run_id == run_id


def test_a_run_whose_record_was_lost_is_not_replaced_by_an_older_one(
    tmp_path: Path, ledger_file: Path
) -> None:
    with Ledger.open(ledger_file.parent) as ledger:
        last = ledger.latest_run()
    assert last is not None
    data = bytearray(ledger_file.read_bytes())
    with closing(sqlite3.connect(ledger_file)) as raw:
        (root,) = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs'").fetchone()
    start = data.index(last.run_id.encode(), (root - 1) * PAGE, root * PAGE)
    data[start + 20] ^= 1
    folder = damaged(tmp_path / "run", bytes(data))
    with Ledger.open(folder) as ledger:
        assert len(ledger.runs()) == 1
        with pytest.raises(InfrastructureError, match="the record of the last run was lost"):
            ledger.latest_run()
        again = one_run(ledger, outcomes={"key-4": False})
        latest = ledger.latest_run()
        assert latest is not None
        assert latest.run_id == again


def test_an_older_outcome_that_was_moved_behind_a_newer_one_is_noticed(ledger_file: Path) -> None:
    """Nothing in the text of an outcome says where its row is; the order decides which outcome counts."""
    with Ledger.open(ledger_file.parent) as ledger:
        failed = ledger.get("key-4")
    assert failed is not None
    assert failed.measurements["good"] is False
    with closing(sqlite3.connect(ledger_file, isolation_level=None)) as raw:
        raw.execute("UPDATE outcomes SET id = id + 1000 WHERE key = 'key-4' AND id < 17")
    with Ledger.open(ledger_file.parent) as ledger:
        assert ledger.notices
        assert ledger.get("key-4") in (None, failed)


def test_a_text_that_a_flipped_bit_made_binary_is_noticed_and_hides_nothing(
    tmp_path: Path, ledger_file: Path
) -> None:
    text = b'"good":false,"text":"key-4key-4'
    folder = damaged(
        tmp_path / "row", ledger_file.read_bytes().replace(text, text.replace(b"false", b"fals%"))
    )
    with Ledger.open(folder) as ledger:
        last = ledger.latest_run()
    for change in ("lost_rows SET key = CAST(key AS BLOB)", "runs SET argv = CAST(argv AS BLOB)"):
        with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as raw:
            raw.execute(f"UPDATE {change}")
        with Ledger.open(folder) as ledger:
            assert ledger.notices, change
            assert ledger.get("key-4") is None
            assert ledger.latest_run() == last


def test_a_repair_that_the_disk_stops_leaves_the_damaged_file_and_nothing_else(
    tmp_path: Path, ledger_file: Path, before: LedgerContent, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ledger_file.read_bytes()[:-PAGE]
    folder = damaged(tmp_path / "full", data)

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(database, "salvage", full)
        with pytest.raises(InfrastructureError, match="ledger"):
            Ledger.open(folder)
    left = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".recovery"}
    assert left == {FILE_NAME: data}
    damage = damage_of(before, folder)
    assert not damage.unusable
    assert not damage.wrong


def in_wal_mode(file: Path) -> sqlite3.Connection:
    """The ledger as an earlier version left it: in WAL mode, with a commit that is only in the log."""
    database = sqlite3.connect(file, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA wal_autocheckpoint = 0")
    return database


def test_a_copy_of_a_ledger_and_its_log_during_a_run_has_everything(
    tmp_path: Path, ledger_file: Path, before: LedgerContent
) -> None:
    with closing(in_wal_mode(ledger_file)) as database:
        database.execute("UPDATE runs SET exit_code = 0")
        copy = tmp_path / "copy"
        shutil.copytree(ledger_file.parent, copy)
        damage = damage_of(before, copy)
    assert not damage.unusable
    assert not damage.lost


@pytest.mark.parametrize("with_journal", [False, True])
def test_a_copy_during_a_transaction_is_read_or_repaired(
    tmp_path: Path, ledger_file: Path, before: LedgerContent, with_journal: bool
) -> None:
    with closing(sqlite3.connect(ledger_file, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("PRAGMA cache_spill = 1")
        writer.execute("BEGIN IMMEDIATE")
        # Too much for the cache, so that pages are in the file before the commit.
        writer.execute("UPDATE outcomes SET body = body || ' '")
        copy = tmp_path / "copy"
        copy.mkdir()
        for file in ledger_file.parent.glob(f"{FILE_NAME}*"):
            if with_journal or file.name == FILE_NAME:
                shutil.copyfile(file, copy / file.name)
        assert (copy / FILE_NAME).read_bytes() != b""
        writer.execute("ROLLBACK")
    if with_journal:
        # Without changing the copy, for example to merge it.
        with Ledger.read(copy / FILE_NAME) as ledger:
            assert not ledger.notices
            assert LedgerContent.of(ledger).outcomes == before.outcomes
    damage = damage_of(before, copy)
    assert not damage.unusable
    assert not damage.wrong
    if with_journal:
        assert not damage.lost


@pytest.mark.parametrize("spoil", [lambda data: data, lambda data: data[: len(data) * 9 // 10]])
def test_reading_a_ledger_changes_nothing_in_its_folder(
    ledger_file: Path, before: LedgerContent, spoil: Callable[[bytes], bytes]
) -> None:
    data = spoil(ledger_file.read_bytes())
    ledger_file.write_bytes(data)
    names = sorted(path.name for path in ledger_file.parent.iterdir())
    with Ledger.read(ledger_file) as ledger:
        found = LedgerContent.of(ledger)
        with pytest.raises(InfrastructureError):
            ledger.record(one_outcome("new", "r"))
    assert before.outcomes.items() >= found.outcomes.items()
    assert bool(found.outcomes) or len(data) < PAGE
    assert ledger_file.read_bytes() == data
    assert sorted(path.name for path in ledger_file.parent.iterdir()) == names
