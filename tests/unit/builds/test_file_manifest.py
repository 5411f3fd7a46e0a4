from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.builds.installed.file_manifest import (
    ManifestError,
    WatchedFolder,
    find_changes,
    has_same_states,
    make_manifest,
    read_manifest,
    write_manifest,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "watched"
    (folder / "left-out").mkdir(parents=True)
    (folder / "a.py").write_text("A = 1\n")
    (folder / "b.py").write_text("B = 1\n")
    return folder


def stored(folder: Path) -> tuple[Path, str]:
    folders = WatchedFolder(path=str(folder), without=("left-out",)), WatchedFolder(path=str(folder))
    path = folder.parent / "files.json"
    return path, write_manifest(make_manifest(folders), path)


def test_a_manifest_is_read_as_it_was_written(folder: Path) -> None:
    path, digest = stored(folder)
    manifest = read_manifest(path, digest)
    assert manifest == make_manifest(manifest.folders)
    assert not find_changes(manifest)


def touch(folder: Path) -> None:
    os.utime(folder / "a.py", ns=(0, 0))


def swap(folder: Path) -> None:
    (folder / "a.py").rename(folder / "c.py")
    (folder / "b.py").rename(folder / "a.py")
    (folder / "c.py").rename(folder / "b.py")


CHANGES: dict[str, Callable[[Path], object]] = {
    "edited": lambda folder: (folder / "a.py").write_text("A = 2\n"),
    "touched": touch,
    "swapped": swap,
    "mode": lambda folder: (folder / "a.py").chmod(0o700),
    "added": lambda folder: (folder / "left-out/c.py").write_text(""),
    "removed": lambda folder: (folder / "a.py").unlink(),
    "folder": lambda folder: (folder / "new").mkdir(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_quick_comparison_notices_every_change(folder: Path, change: Callable[[Path], object]) -> None:
    path, digest = stored(folder)
    assert has_same_states(path, digest)
    change(folder)
    assert not has_same_states(path, digest)


def test_the_quick_comparison_does_not_believe_an_edited_manifest(folder: Path) -> None:
    path, digest = stored(folder)
    (folder / "a.py").write_text("forged")
    stored(folder)
    with pytest.raises(ManifestError, match="not the one"):
        has_same_states(path, digest)
