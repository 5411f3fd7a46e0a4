"""Leases of cards, with real processes that are killed."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import card_locks
from harness.devices.cards.card_leases import CardLeases, closest_cards
from harness.errors import InfrastructureError, InterruptedRunError
from harness.fixtures.cell_leases import NoCardError, lease_cards

ROOT = Path(__file__).parents[3]
HOLDER = """
import sys, time
from pathlib import Path
from harness.devices.cards.card_leases import CardLeases
folder, count, seconds, name = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
with CardLeases(folder).lease(range(4), count, name) as cards:
    print(*cards, flush=True)
    time.sleep(seconds)
"""


@pytest.fixture
def book(tmp_path: Path) -> CardLeases:
    return CardLeases(tmp_path / "leases")


@pytest.fixture
def holder(book: CardLeases):
    started: list[subprocess.Popen[str]] = []

    def start(count: int, seconds: float = 600, name: str = "other") -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", HOLDER, str(book.folder), str(count), str(seconds), name]
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def until(condition) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true within 90 s"
        time.sleep(0.02)


def test_cards_are_exclusive_and_come_back(book: CardLeases):
    with book.lease([0, 1], 1, "a") as first, book.lease([0, 1], 1, "b") as second:
        assert {first, second} == {(0,), (1,)}
        assert [(lease.card, lease.what, lease.pid) for lease in book.list_leases()] == [
            (0, "a", os.getpid()),
            (1, "b", os.getpid()),
        ]
    assert book.list_leases() == ()
    with book.lease([0, 1], 2, "c") as both:
        assert both == (0, 1)


def test_a_killed_holder_frees_its_cards_at_once_and_a_live_one_keeps_them(book: CardLeases, holder):
    dead, alive = holder(2, name="dead"), None
    assert dead.stdout.readline() == "0 1\n"
    alive = holder(1, name="alive")
    assert alive.stdout.readline() == "2\n"
    dead.send_signal(signal.SIGKILL)
    dead.wait()
    with book.lease(range(4), 3, "three", stopped=lambda: False) as cards:
        assert cards == (0, 1, 3)
    assert [lease.what for lease in book.list_leases()] == ["alive"]


def test_requests_are_served_in_order(book: CardLeases, holder):
    first = holder(3, name="first")
    assert first.stdout.readline() == "0 1 2\n"
    big = holder(4, seconds=0, name="big")
    until(lambda: [lease.what for lease in book.list_leases()] == ["first"] * 3 + ["big"])
    small = holder(1, seconds=0, name="small")
    until(lambda: [lease.what for lease in book.list_leases()][3:] == ["big", "small"])
    # Card 3 is free, but the request for one card waits behind the earlier request for four.
    first.kill()
    assert big.stdout.readline() == "0 1 2 3\n"
    # The other process releases its cards one after another, so any of them can be the first free card.
    assert small.stdout.readline() in {f"{card}\n" for card in range(4)}


def test_a_process_that_dies_in_the_queue_does_not_block_others(book: CardLeases, holder):
    with book.lease(range(4), 4, "all"):
        waiting = holder(4, name="waiting")
        until(lambda: any(lease.card is None for lease in book.list_leases()))
        waiting.kill()
        waiting.wait()
    with book.lease(range(4), 4, "next") as cards:
        assert cards == (0, 1, 2, 3)


def test_waiting_can_be_stopped_and_says_for_whom_it_waits(book: CardLeases, holder):
    assert holder(4, name="loss of cell x").stdout.readline()
    messages: list[str] = []
    with (
        pytest.raises(InterruptedRunError),
        book.lease(range(4), 1, "mine", stopped=lambda: bool(messages), waiting=messages.append),
    ):
        pass
    assert "card 0: loss of cell x (" in messages[0]
    assert all(lease.what != "mine" for lease in book.list_leases())


def test_more_cards_than_there_are(book: CardLeases):
    with (
        pytest.raises(InfrastructureError, match="8 cards were requested, but only 4 can be used"),
        book.lease(range(4), 8, "x"),
    ):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InfrastructureError, match="cannot be leased") as caught,
        CardLeases(tmp_path / "file" / "x").lease([0], 1, "x"),
    ):
        pass
    assert "NPU_MATRIX_LEASES" in caught.value.problems[0].fix


def test_a_link_in_the_shared_folder_is_not_followed(book: CardLeases, tmp_path: Path):
    book.folder.mkdir()
    (tmp_path / "precious").write_text("precious")
    (book.folder / "card-0.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(InfrastructureError), book.lease([0], 1, "x"):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


def remove_file(folder: Path) -> None:
    (folder / "card-0.lock").unlink()


def replace_file(folder: Path) -> None:
    (folder / "new").write_text("{}")
    (folder / "new").replace(folder / "card-0.lock")


def truncate_file(folder: Path) -> None:
    (folder / "card-0.lock").write_bytes(b"")


def rename_file(folder: Path) -> None:
    (folder / "card-0.lock").rename(folder / "card-0.old")


def exchange_files(folder: Path) -> None:
    (folder / "card-0.lock").rename(folder / "card-1.lock")


def move_folder(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def copy_folder(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    shutil.copytree(folder.with_name("moved"), folder)


DAMAGES = [
    *(remove_file, replace_file, truncate_file, rename_file, exchange_files),
    *(move_folder, remove_folder, copy_folder),
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("inside_cell", [False, True])
def test_a_card_has_one_lease_whatever_is_done_to_its_files(
    book: CardLeases, holder, monkeypatch: pytest.MonkeyPatch, damage, inside_cell: bool
):
    monkeypatch.setenv("NPU_MATRIX_LEASES", str(book.folder))
    living = holder(1, name="living")
    assert living.stdout.readline() == "0\n"
    damage(book.folder)
    for _attempt in range(2):
        if inside_cell:
            with pytest.raises(NoCardError), lease_cards([0], 1, seconds=0):
                pass
        else:
            with pytest.raises(InterruptedRunError), book.lease([0], 1, "x", stopped=lambda: True):
                pass
    assert 0 in [lease.card for lease in book.list_leases()]
    living.kill()
    living.wait()
    with book.lease([0], 1, "next") as cards:
        assert cards == (0,)


def test_a_moved_folder_whose_files_were_removed_is_still_the_same_folder(book: CardLeases, holder):
    assert holder(1).stdout.readline() == "0\n"
    moved = book.folder.rename(book.folder.with_name("moved"))
    for file in moved.iterdir():
        file.unlink()
    for name in ("moved", "leases"):
        with (
            pytest.raises(InterruptedRunError),
            CardLeases(moved.with_name(name)).lease([0], 1, "x", stopped=lambda: True),
        ):
            pass


def test_a_folder_reached_by_two_paths_is_one_folder(book: CardLeases, holder, tmp_path: Path):
    (tmp_path / "other").symlink_to(tmp_path)
    assert holder(1).stdout.readline() == "0\n"
    (book.folder / "card-0.lock").unlink()
    again = CardLeases(tmp_path / "other" / "leases")
    with pytest.raises(InterruptedRunError), again.lease([0], 1, "x", stopped=lambda: True):
        pass


TAKER = """
import os, sys
from pathlib import Path
from harness.devices.cards.card_leases import CardLeases
folder, marker = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(25):
    with CardLeases(folder).lease([0], 1, "x"):
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        marker.unlink()
"""


def test_processes_exclude_each_other_while_their_files_disappear(book: CardLeases, tmp_path: Path):
    argv = [sys.executable, "-c", TAKER, str(book.folder), str(tmp_path / "marker")]
    takers = [subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}) for _number in range(3)]
    while any(taker.poll() is None for taker in takers):
        for file in book.folder.glob("*.lock"):
            file.unlink(missing_ok=True)
        time.sleep(0.002)
    assert [taker.returncode for taker in takers] == [0, 0, 0]


def test_a_file_that_was_removed_before_it_was_locked_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lock, removed = fcntl.flock, []

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append((tmp_path / "card-0.lock").unlink())
        lock(descriptor, operation)

    monkeypatch.setattr(card_locks.fcntl, "flock", remove_first)
    with (
        card_locks.open_folder(tmp_path) as folder,
        card_locks.locked_file(folder, "card-0.lock") as descriptor,
    ):
        assert os.fstat(descriptor).st_ino == (tmp_path / "card-0.lock").stat().st_ino


def test_a_folder_that_is_a_link_is_refused_and_its_target_unchanged(book: CardLeases, tmp_path: Path):
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    book.folder.symlink_to(target)
    with pytest.raises(InfrastructureError, match="symbolic link"), book.lease([0], 1, "x"):
        pass
    with pytest.raises(InfrastructureError, match="symbolic link"):
        book.list_leases()
    assert target.stat().st_mode & 0o7777 == 0o700
    assert not list(target.iterdir())


def test_a_link_in_a_cell_is_refused_and_its_target_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "real" / "group").symlink_to(target)
    for folder, among in (("link", ""), ("link", "group"), ("real", "group")):
        monkeypatch.setenv("NPU_MATRIX_LEASES", str(tmp_path / folder))
        with pytest.raises(OSError, match="symbolic link"), lease_cards([0], 1, seconds=0, among=among):
            pass
    assert target.stat().st_mode & 0o7777 == 0o700
    assert not list(target.iterdir())


def test_the_mode_of_a_folder_that_was_there_is_kept(book: CardLeases):
    book.folder.mkdir(mode=0o700)
    with book.lease([0], 1, "x"):
        assert book.folder.stat().st_mode & 0o7777 == 0o700
    book.folder.chmod(0o777)
    with pytest.raises(InfrastructureError, match="sticky bit"), book.lease([0], 1, "x"):
        pass


@pytest.mark.parametrize("name", ["book.lock", "card-0.lock", "ticket-00000001.lock"])
def test_a_second_name_of_another_file_is_neither_written_nor_opened_to_others(
    book: CardLeases, tmp_path: Path, name: str
):
    book.folder.mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "precious").chmod(0o600)
    (book.folder / name).hardlink_to(tmp_path / "precious")
    with pytest.raises(InfrastructureError, match="second name"), book.lease([0], 1, "x"):
        pass
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "precious").stat().st_mode & 0o777 == 0o600


def test_a_damaged_note_is_still_a_lease(book: CardLeases, holder):
    assert holder(1).stdout.readline() == "0\n"
    (book.folder / "card-0.lock").write_text("{")
    (lease,) = book.list_leases()
    assert (lease.card, lease.what) == (0, "?")


def test_files_of_others_in_the_shared_folder_are_nobodys_leases(book: CardLeases, holder):
    with book.lease([0], 1, "a"):
        for name in ("card-x.lock", "card-.lock", "card-\N{SUPERSCRIPT TWO}.lock", "card-1.lock"):
            (book.folder / name).write_bytes(b'{"pid"')
        for name in ("ticket-abc.lock", "ticket-\N{SUPERSCRIPT TWO}.lock", "ticket-00000007.lock"):
            (book.folder / name).touch()
        assert [(lease.card, lease.what) for lease in book.list_leases()] == [(0, "a")]
        with book.lease([0, 1], 1, "b") as cards:
            assert cards == (1,)


@pytest.mark.parametrize("name", ["book.lock", "card-0.lock", "ticket-00000001.lock"])
def test_a_folder_in_the_place_of_a_file_is_named(book: CardLeases, name: str):
    (book.folder / name).mkdir(parents=True)
    with pytest.raises(InfrastructureError) as caught, book.lease([0], 1, "a"):
        pass
    assert name in str(caught.value)
    assert "remove everything in it that is not a file" in str(caught.value)


def test_the_plugin_inside_a_cell_sees_the_same_leases(book: CardLeases, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NPU_MATRIX_LEASES", str(book.folder))
    with book.lease([0], 1, "outside"), pytest.raises(NoCardError), lease_cards([0], 1, seconds=0.1):
        pass
    with (
        lease_cards([0], 1),
        pytest.raises(InterruptedRunError),
        book.lease([0], 1, "x", stopped=lambda: True),
    ):
        pass


@given(free=st.sets(st.integers(0, 15)), count=st.integers(1, 8))
def test_neighbours_are_as_close_as_any(free: set[int], count: int):
    chosen = closest_cards(sorted(free), count)
    if len(free) < count:
        assert chosen is None
        return
    assert chosen is not None
    assert set(chosen) <= free
    assert len(set(chosen)) == count
    if len(free) <= 9:
        best = min(max(some) - min(some) for some in itertools.combinations(free, count))
        assert chosen[-1] - chosen[0] == best
