"""A network of its own for the process of a test file: nothing but the loopback interface.

Tests of collectives use fixed ports (29500), so that of two files that run at a time one waits for ranks of
the other. Needs Linux namespaces, which containers often forbid.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_SET_FLAGS, _UP = 0x8914, 0x1


def leave_network() -> bool:
    """Give this process, which has one thread, a network of its own. Returns whether that was allowed."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None)
    if libc.unshare(_NEW_NETWORK):
        if libc.unshare(_NEW_USER | _NEW_NETWORK):
            return False
        _keep_ids(user, group)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", b"lo", _UP))
    except OSError:
        return False
    return True


def may_leave_network() -> bool:
    """Whether processes of this one may have a network of their own, tried in a forked one."""
    process = os.fork()
    if process == 0:
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if leave_network() else 1
        os._exit(code)
    return os.waitpid(process, 0)[1] == 0


def _keep_ids(user: int, group: int) -> None:
    """In a new user namespace, this process is still the same user."""
    own = Path("/proc/self")
    with contextlib.suppress(OSError):
        (own / "setgroups").write_text("deny", encoding="ascii")
        (own / "gid_map").write_text(f"{group} {group} 1", encoding="ascii")
        (own / "uid_map").write_text(f"{user} {user} 1", encoding="ascii")
