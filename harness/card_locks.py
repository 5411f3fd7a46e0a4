"""Locks of a host's cards that survive whatever is done to their files.

A process holds a card in two independent places: it has the lock (`flock`) of the card's file in the lease
folder, and it has bound names in the kernel (abstract Unix sockets) that no file system contains. A card is
free only if both places are free. Removing, replacing, truncating or renaming the file, or moving the folder,
changes only the first place. The kernel releases both when the process ends, however it ends.

Every user of the host can write to the lease folder. Therefore it and its files are never opened through a
symbolic link, and a file with a second name (hard link) is refused.

Limits: a socket belongs to a network namespace, so between containers with networks of their own only the
file protects. On systems without abstract sockets (other than Linux) as well.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

#: File modes: every user of the host must be able to lock the files, whoever created them.
SHARED_FILE, SHARED_FOLDER = 0o666, 0o1777
_PREFIX = "npu-matrix-card"
_SOCKETS = Path("/proc/net/unix")


@contextlib.contextmanager
def open_folder(path: Path, *, create: bool = True) -> Iterator[int]:
    """A descriptor of the lease folder, which is created for all users if it is missing.

    OSError if it is not a folder, is a symbolic link, or if others can replace its files.
    """
    made = False
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            made = True
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed here", str(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if made and found.st_uid == os.geteuid():
            os.fchmod(descriptor, SHARED_FOLDER)
        elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            raise OSError(
                errno.EPERM, "other users can replace its files: its sticky bit is not set", str(path)
            )
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_file(folder: int, name: str, *, wait: bool = False) -> Iterator[int]:
    """Hold the lock of a file in an open folder, and create it if it is missing; a descriptor of the file.

    BlockingIOError if another process holds it; with `wait`, wait for that process. Another OSError if the
    file is a symbolic link, not a plain file, or has a second name.
    """
    while True:
        descriptor = _open(folder, name)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # Another process can remove the file between its opening and its locking.
            if is_file(folder, name, os.fstat(descriptor)):
                # The umask removed the permissions of other users. Only the owner can add them again.
                if os.fstat(descriptor).st_uid == os.geteuid():
                    os.fchmod(descriptor, SHARED_FILE)
                yield descriptor
                return
        finally:
            os.close(descriptor)


def is_file(folder: int, name: str, known: os.stat_result) -> bool:
    """Whether the name in the folder is this file."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (known.st_dev, known.st_ino)


@contextlib.contextmanager
def locked_card(path: Path, folder: int, card: int) -> Iterator[int]:
    """Hold a card of the lease folder `path`, open as `folder`; a descriptor of the card's file.

    BlockingIOError if another process or another lease of this process holds it.
    """
    with contextlib.ExitStack() as held:
        # The inode of an open folder is not given to another folder.
        held.callback(os.close, os.dup(folder))
        for name in _socket_names(path, folder, card):
            held.enter_context(_bound(name))
        yield held.enter_context(locked_file(folder, card_file(card)))


def card_file(card: int) -> str:
    """The name of the lock file of a card."""
    return f"card-{card}.lock"


def cards_in_kernel(path: Path, folder: int) -> frozenset[int]:
    """The cards of the folder whose names are bound in the kernel, also if their files were removed."""
    own = {name.rpartition("/")[0] for name in _socket_names(path, folder, 0)}
    try:
        lines = _SOCKETS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    names = [line.rpartition(" @")[2].rpartition("/") for line in lines if f" @{_PREFIX}/" in line]
    return frozenset(
        int(card) for folder_name, _slash, card in names if folder_name in own and card.isdecimal()
    )


def _open(folder: int, name: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # Without O_CREAT first: Linux refuses it for other users' files in a shared folder.
        descriptor = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        descriptor = os.open(name, flags | os.O_CREAT, SHARED_FILE, dir_fd=folder)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    why = "it is not a plain file" if found.st_nlink <= 1 else "it has a second name (hard link)"
    raise OSError(errno.EPERM, why, name)


def _socket_names(path: Path, folder: int, card: int) -> tuple[str, ...]:
    """The names of a card: by the folder's path as it was written, by its real path, and by its inode."""
    found = os.fstat(folder)
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link at its end
    identities = {
        f"{absolute}",
        f"{absolute.parent.resolve() / absolute.name}",
        f"{found.st_dev}:{found.st_ino}",
    }
    digests = sorted(hashlib.sha256(os.fsencode(identity)).hexdigest()[:32] for identity in identities)
    return tuple(f"{_PREFIX}/{digest}/{card}" for digest in digests)


@contextlib.contextmanager
def _bound(name: str) -> Iterator[None]:
    if sys.platform != "linux":
        yield
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        try:
            bound.bind(f"\0{name}")
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise BlockingIOError(errno.EWOULDBLOCK, "another process holds this card", name) from error
            raise
        yield
