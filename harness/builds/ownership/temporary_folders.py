"""Short temporary folders that say whose they are, so that what killed processes left can be removed."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.builds.ownership.owner_labels import ProcessOwner, this_process

# Short: what is in it becomes part of the names of sockets, which end at 107 characters.
PREFIX = "npmx-"
OWNER_FILE = ".owner"


@contextlib.contextmanager
def temporary_folder(place: Path | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """A scratch folder for a while. What somebody still writes into may stay, for `cleanup`."""
    folder = make_temporary_folder(place, prefix)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            remove_temporary_folder(folder)


def make_temporary_folder(place: Path | None = None, prefix: str = PREFIX) -> Path:
    """A new folder that holds its owner's name and nothing else; `remove_temporary_folder` ends it.

    It is in `place`, by default in the folder for temporary files, which is where `cleanup` looks; who makes
    one elsewhere looks there for what was left.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    (folder / OWNER_FILE).write_text(str(this_process()), encoding="utf-8")
    return folder


def claim_temporary_folder(folder: Path, owner: ProcessOwner) -> Path:
    """Make `folder`, whose name starts with `PREFIX`, one of `owner`; several may do so at once."""
    folder.mkdir(parents=True, exist_ok=True)
    if read_folder_owner(folder) is None:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as beside:
            beside.write(str(owner))
        Path(beside.name).replace(folder / OWNER_FILE)
    return folder


def list_temporary_folders(place: Path, prefix: str = PREFIX) -> tuple[Path, ...]:
    """This user's scratch folders in `place`, in use or left over."""
    return tuple(folder for folder in sorted(place.glob(f"{glob.escape(prefix)}*")) if _is_own_folder(folder))


def _is_own_folder(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        # Its owner has just removed it.
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def read_folder_owner(folder: Path) -> ProcessOwner | None:
    """Whose scratch folder it is; None where that cannot be read."""
    try:
        return ProcessOwner.parse((folder / OWNER_FILE).read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def remove_temporary_folder(folder: Path) -> None:
    """Remove it if it is there; OSError when something of it stays.

    Its owner's name goes last: what a removal that is cut short leaves can still be told from the living's.
    """
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != OWNER_FILE:
            entry.unlink()
    shutil.rmtree(folder)
