"""Members of tar archives are written below a folder only, with every Python."""

from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path

import pytest

from harness.sources.tar_members import write_member

FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


def unpacked(folder: Path, *members: tuple[str, bytes, str]) -> Path:
    """Write members (name, kind, content or target) to an archive and unpack it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o6755 if name.endswith(".sh") else 0o666
            if kind == FILE:
                member.size = len(content)
            else:
                member.linkname = content
            archive.addfile(member, io.BytesIO(content.encode()))
    stream.seek(0)
    place = folder / "out"
    place.mkdir()
    with tarfile.open(fileobj=stream) as archive:
        for member in archive:
            write_member(archive, member, place)
    return place


def test_files_folders_and_links_inside_are_written_without_special_modes(tmp_path: Path) -> None:
    place = unpacked(
        tmp_path,
        ("lib", FOLDER, ""),
        ("lib/a.so.1", FILE, "library"),
        ("lib/a.so", LINK, "a.so.1"),
        ("lib/b.so", HARD, "lib/a.so.1"),
        ("bin/run.sh", FILE, "echo"),
        ("lib/a.so.1", FILE, "newer"),
        ("dangling", LINK, "lib/none"),
        ("lib/up", LINK, "../bin/run.sh"),
        ("copy", HARD, "lib/up"),
    )
    assert (place / "lib/a.so").readlink() == Path("a.so.1")
    assert ((place / "lib/a.so").read_text(), (place / "lib/b.so").read_text()) == ("newer", "library")
    assert stat.S_IMODE((place / "bin/run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((place / "lib/a.so.1").stat().st_mode) == 0o644
    assert (place / "dangling").is_symlink()
    assert not (place / "copy").is_symlink()
    assert (place / "copy").read_text() == "echo"


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", FILE, "x")],
        [("/evil", FILE, "x")],
        [("a/../../evil", FILE, "x")],
        [("a", LINK, "..")],
        [("a", LINK, "/etc")],
        [("a", HARD, "../evil")],
        [("a", HARD, "/etc/passwd")],
        # A chain of links, each of which is inside when it is written, as in CVE-2025-4517.
        [("b", FOLDER, ""), ("a", LINK, "b"), ("b/c", LINK, "../.."), ("a/c/evil", FILE, "x")],
        [("a", LINK, "b"), ("b", LINK, ".."), ("a/evil", FILE, "x")],
        [("device", tarfile.CHRTYPE, "")],
        [("pipe", tarfile.FIFOTYPE, "")],
    ],
)
def test_what_leads_outside_is_refused(tmp_path: Path, members: list[tuple[str, bytes, str]]) -> None:
    with pytest.raises(tarfile.ReadError):
        unpacked(tmp_path, *members)
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_a_file_that_replaces_a_link_does_not_write_through_it(tmp_path: Path) -> None:
    place = unpacked(tmp_path, ("a", FILE, "kept"), ("b", LINK, "a"), ("b", FILE, "new"))
    assert ((place / "a").read_text(), (place / "b").read_text()) == ("kept", "new")
