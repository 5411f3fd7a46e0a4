"""Marks a cache folder as used by a running process, so that `cleanup` does not remove its environments."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from harness.errors import InfrastructureError, Location

USERS = "users.lock"


class CacheUse:
    """Marks the cache as used until this object is deleted or its process ends."""

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
        """Release the lock; the kernel does it for a process that was killed."""
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def cache_in_use(cache: Path) -> bool:
    """Whether a process has a `CacheUse` of this cache."""
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
