"""Write members of a tar archive to disk; Python 3.11.0 to 3.11.3 have no extraction filters."""

from __future__ import annotations

import shutil
import stat
import tarfile
from pathlib import Path

from harness.sources.tree import path_problem


def write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a file, folder or link of an archive below `folder`, without its owner and times.

    tarfile.ReadError if it, or the file that a link names, would be outside of `folder`, or for a device.
    """
    problem = path_problem(member.name.removeprefix("./"))
    if problem:
        raise tarfile.ReadError(f"member {member.name!r} has {problem}")
    place = folder / member.name
    _ensure_inside(place.parent, member, folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        _ensure_inside(place, member, folder)
        place.mkdir(exist_ok=True)
        return
    place.unlink(missing_ok=True)
    if member.issym():
        _ensure_inside(place.parent / member.linkname, member, folder)
        place.symlink_to(member.linkname)
    elif member.islnk():
        _ensure_inside(folder / member.linkname, member, folder)
        # The file itself: a relative link would lead elsewhere from the new place.
        place.hardlink_to((folder / member.linkname).resolve())
    elif (stream := archive.extractfile(member)) is not None:
        with place.open("xb") as target:
            shutil.copyfileobj(stream, target)
        place.chmod(0o755 if member.mode & stat.S_IXUSR else 0o644)
    else:
        raise tarfile.ReadError(f"member {member.name!r} is a device")


def _ensure_inside(place: Path, member: tarfile.TarInfo, folder: Path) -> None:
    """ReadError if the links on the way lead out of `folder`."""
    if not place.resolve().is_relative_to(folder.resolve()):
        raise tarfile.ReadError(f"member {member.name!r} leads to {place.resolve()}, outside of the archive")
