"""Whether a living run uses a cache folder: what it may enter at any moment must not be removed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from harness.errors import InfrastructureError, Location

USERS = "users.lock"


class CacheUse:
    """Says, until it is dropped or its process ends however it ends, that a run uses this cache."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        try:
            cache.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(cache / USERS, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InfrastructureError(
                "the cache folder cannot be written",
                where=Location(cache),
                why=error.strerror or str(error),
                fix="free space, or set NPU_MATRIX_CACHE to a folder that can be written",
            ) from error
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def __del__(self) -> None:
        """The use is over; the kernel says so for a process that was killed."""
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def cache_in_use(cache: Path) -> bool:
    """Whether somebody keeps a `CacheUse` of it."""
    try:
        descriptor = os.open(cache / USERS, os.O_RDWR)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
