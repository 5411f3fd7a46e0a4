from __future__ import annotations

import errno
from datetime import date
from pathlib import Path

import pytest
from test_stack_import import COMMIT, PATCH, plugin

from harness.errors import EXIT_INCOMPLETE, InputError
from harness.patchstack.stacks.file_set import write_together
from harness.patchstack.stacks.patch_stack import load_stack
from harness.patchstack.stacks.stack_export import export_stack, write_imported
from harness.patchstack.stacks.stack_import import import_patches


def fill_disk(monkeypatch: pytest.MonkeyPatch, files: int) -> None:
    """The disk is full after some files; the next one is written in part."""
    written = []

    def write_bytes(path: Path, data: bytes) -> int:
        written.append(path)
        with path.open("wb") as file:
            file.write(data if len(written) <= files else data[: len(data) // 2])
        if len(written) > files:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return len(data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)


def everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("files", range(2))
@pytest.mark.parametrize("exists", [False, True])
def test_an_export_to_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, *, exists: bool
) -> None:
    imported = import_patches(plugin(tmp_path / "theirs"))
    write_imported(imported, tmp_path / "patches", {COMMIT: "==0.6.1"}, "us", date(2027, 1, 1))
    stack = load_stack(tmp_path / "patches", "verl")
    out = tmp_path / "new" / "out"
    if exists:
        out.mkdir(parents=True)
    before = everything(tmp_path)
    with monkeypatch.context() as full:
        fill_disk(full, files)
        with pytest.raises(InputError, match="disk is full") as caught:
            export_stack(stack, "0.6.1", out)
    assert caught.value.exit_code == EXIT_INCOMPLETE
    assert everything(tmp_path) == before
    assert len(export_stack(stack, "0.6.1", out)) == 2, "and works once there is space"


@pytest.mark.parametrize("files", range(5))
def test_an_import_to_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    imported = import_patches(plugin(tmp_path / "theirs", other=PATCH))
    series = tmp_path / "patches" / "verl" / "series"
    series.parent.mkdir(parents=True)
    series.write_text("earlier\n")
    before = everything(tmp_path)
    with monkeypatch.context() as full:
        fill_disk(full, files)
        with pytest.raises(InputError, match="disk is full"):
            write_imported(imported, tmp_path / "patches", {COMMIT: "==0.6.1"}, "us", date(2027, 1, 1))
    assert everything(tmp_path) == before
    write_imported(imported, tmp_path / "patches", {COMMIT: "==0.6.1"}, "us", date(2027, 1, 1))
    assert series.read_text() == "earlier\nmod\nother\n"


def test_a_folder_that_cannot_be_created_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be created"):
        write_together({tmp_path / "new" / "one": b"1", tmp_path / "file" / "two": b"2"})
    assert everything(tmp_path) == {"file": b""}
