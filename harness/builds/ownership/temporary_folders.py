"""Temporary folders that name their owner, so that those of killed processes can be removed."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness.builds.ownership.owner_labels import ProcessOwner, ProcessView, this_process

# Short, because paths of Unix sockets have at most 107 characters.
PREFIX = "npmx-"
OWNER_FILE = ".owner"
# Longer than the longest build of a layer, which has a limit of one hour.
ABANDONED_AFTER_S = 2 * 3600.0
# A file system in memory: what a killed process leaves there is on no disk.
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the folders in it are made by mkdtemp


def memory_folder() -> Path:
    """The folder for temporary files with credentials, in memory if the system has such a file system."""
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
    return SHARED_MEMORY if usable else Path(tempfile.gettempdir())


def temporary_parents() -> tuple[Path, ...]:
    """The folders in which this program makes temporary folders."""
    return tuple(dict.fromkeys((Path(tempfile.gettempdir()), memory_folder())))


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """A temporary folder that is removed at the end; if that fails, `cleanup` removes it later."""
    folder = make_temporary_folder(parent, prefix)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            remove_temporary_folder(folder)


def make_temporary_folder(parent: Path | None = None, prefix: str = PREFIX) -> Path:
    """A new temporary folder with a file that names its owner; remove it with `remove_temporary_folder`.

    parent: by default the temporary folder of the system. `cleanup` searches `temporary_parents`, so a caller
    that uses another parent has to remove leftover folders itself.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    (folder / OWNER_FILE).write_text(str(this_process()), encoding="utf-8")
    return folder


def claim_temporary_folder(folder: Path, owner: ProcessOwner) -> Path:
    """Create `folder`, whose name starts with `PREFIX`, for `owner`. Safe with concurrent calls."""
    folder.mkdir(parents=True, exist_ok=True)
    if read_folder_owner(folder) is None:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as temporary:
            temporary.write(str(owner))
        Path(temporary.name).replace(folder / OWNER_FILE)
    return folder


def list_temporary_folders(parent: Path, prefix: str = PREFIX) -> tuple[Path, ...]:
    """This user's temporary folders in `parent`, whether in use or not."""
    return tuple(
        folder for folder in sorted(parent.glob(f"{glob.escape(prefix)}*")) if _is_own_folder(folder)
    )


def _is_own_folder(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        # Its owner has just removed it.
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def read_folder_owner(folder: Path) -> ProcessOwner | None:
    """The owner of a temporary folder; None when the file cannot be read."""
    try:
        return ProcessOwner.parse((folder / OWNER_FILE).read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def last_change_time(folder: Path) -> float | None:
    """When a file was last added or removed; None when the folder no longer exists."""
    try:
        return folder.lstat().st_mtime
    except FileNotFoundError:
        return None


def is_folder_orphaned(folder: Path, view: ProcessView) -> tuple[bool, str] | None:
    """Whether a temporary folder can be removed, and why or why not; None when it no longer exists.

    It can be removed if its owner is dead, or if it has no owner and has not changed for two hours.
    """
    owner = read_folder_owner(folder)
    if owner is not None:
        state = view.state(owner)
        if state in ("alive", "dead"):
            return state == "dead", f"its owner, process {owner.pid}, is {state}"
        return False, state
    # Its creator was killed before it wrote the owner, is about to write it, or removes the folder.
    used = last_change_time(folder)
    if used is None:
        return None
    age = time.time() - used
    return age > ABANDONED_AFTER_S, f"it names no owner, and was used {age / 3600:.1f} hours ago"


def remove_orphaned_folders(temporary: Path | None = None, prefix: str = PREFIX) -> None:
    """Remove the temporary folders of dead processes; `cleanup` reports those that cannot be removed."""
    parents = (temporary,) if temporary else temporary_parents()
    for folder in (folder for parent in parents for folder in list_temporary_folders(parent, prefix)):
        decided = is_folder_orphaned(folder, ProcessView())
        if decided is not None and decided[0]:
            with contextlib.suppress(OSError):
                remove_temporary_folder(folder)


def remove_temporary_folder(folder: Path) -> None:
    """Remove a temporary folder if it exists; OSError when a part of it remains.

    The file with its owner is removed last, so that a partly removed folder still has an owner.
    """
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != OWNER_FILE:
            entry.unlink()
    shutil.rmtree(folder)
