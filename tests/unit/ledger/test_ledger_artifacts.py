from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.digest import digest_bytes
from harness.errors import InfrastructureError
from harness.ledger.artifacts import ArtifactStore
from harness.outcome import ArtifactRef


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def leftovers(store: ArtifactStore) -> list[Path]:
    return list((store.folder / "incoming").glob("*"))


def test_bytes_and_files_come_back(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_bytes(b"torch==2.13.0\n")
    for source in (b"torch==2.13.0\n", tmp_path / "lock.txt"):
        ref = store.put(source, "lock.txt", "text/plain")
        assert ref == ArtifactRef(
            name="lock.txt", digest=digest_bytes(b"torch==2.13.0\n"), size=14, media_type="text/plain"
        )
        assert store.get(ref).read_bytes() == b"torch==2.13.0\n"
    assert leftovers(store) == []
    assert store.is_intact(ref)


def test_a_missing_and_a_cut_off_file_are_said(store: ArtifactStore) -> None:
    ref = store.put(b"0123456789", "curve")
    path = store.get(ref)
    path.chmod(0o644)
    path.write_bytes(b"0123")
    assert not store.is_intact(ref)
    with pytest.raises(InfrastructureError, match="4 bytes instead of 10"):
        raise_with_why(store, ref)
    path.unlink()
    with pytest.raises(InfrastructureError, match="not in the store"):
        store.get(ref)


def raise_with_why(store: ArtifactStore, ref: ArtifactRef) -> None:
    try:
        store.get(ref)
    except InfrastructureError as error:
        raise InfrastructureError(str(error)) from error


def test_changed_bytes_are_found_and_healed_by_the_next_put(store: ArtifactStore) -> None:
    ref = store.put(b"0123456789", "curve")
    path = store.get(ref)
    path.chmod(0o644)
    before = path.stat()
    path.write_bytes(b"012345678X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not store.is_intact(ref)
    with pytest.raises(InfrastructureError, match="its content was changed"):
        raise_with_why(store, ref)
    store.put(b"0123456789", "curve")
    assert store.is_intact(ref)


@given(st.text())
def test_what_is_no_digest_is_no_path(text: str) -> None:
    with pytest.raises(ValueError, match="digest"):
        ArtifactStore(Path("nowhere")).path(text)


@pytest.mark.parametrize(
    ("number", "fix"), [(errno.ENOSPC, "free space"), (errno.EROFS, "writable"), (errno.EIO, "writable")]
)
def test_a_disk_that_refuses_leaves_nothing_half_written(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch, number: int, fix: str
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    store.put(b"before", "x")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(InfrastructureError) as caught:
        store.put(b"after", "log")
    assert fix in caught.value.problems[0].fix
    assert leftovers(store) == []
    assert len(list(store.folder.glob("sha256/??/*"))) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="not run: no /dev/full here")
def test_the_error_of_a_really_full_device_is_recognised(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_device(**_where: Path) -> tuple[int, str]:
        return os.open("/dev/full", os.O_WRONLY), "not-there"

    monkeypatch.setattr("harness.ledger.artifacts.tempfile.mkstemp", full_device)
    with pytest.raises(InfrastructureError) as caught:
        store.put(b"x" * 100_000, "log")
    assert "free space" in caught.value.problems[0].fix


def test_a_source_that_does_not_exist(store: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="absent"):
        store.put(tmp_path / "absent", "absent")


def test_what_killed_writers_left_is_cleared_and_what_is_being_written_is_not(store: ArtifactStore) -> None:
    ref = store.put(b"whole", "x")
    old, young = (store.folder / "incoming" / name for name in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1.0, 1.0))
    store.clear_unfinished(before=1000.0)
    assert (old.exists(), young.exists()) == (False, True)
    assert store.is_intact(ref)
