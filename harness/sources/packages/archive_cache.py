"""Cached files of releases. Their names are digests, and nothing is read that this process has not verified.

A file in the cache is verified against the digest that the lock or the package index states, or made again
from such a file. A digest that is stored in the cache itself proves nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.digest import digest_file
from harness.errors import InfrastructureError

FileIdentity = tuple[int, int, int, int, int]


class VerifiedFiles:
    """The files that this process has verified. Each is hashed once, until its status changes."""

    def __init__(self) -> None:
        self._verified: dict[tuple[Path, str], FileIdentity] = {}

    def contains(self, path: Path, content: str) -> bool:
        """Whether this process verified that the file has this content, and it has not been touched since."""
        known = self._verified.get((path, content))
        return known is not None and known == _identity(path)

    def add(self, path: Path, content: str) -> None:
        """Note that the file has this content, a digest or the name of what it was made from."""
        identity = _identity(path)
        if identity is not None:
            self._verified[path, content] = identity

    def has_digest(self, path: Path, sha256: str) -> bool:
        """Whether the file exists and has this SHA-256."""
        if self.contains(path, sha256):
            return True
        # The status is read before the file, so that a change while it is read is noticed next time.
        identity = _identity(path)
        try:
            if identity is None or digest_file(path) != sha256:
                return False
        except OSError:
            return False
        self._verified[path, sha256] = identity
        return True


VERIFIED = VerifiedFiles()


def _identity(path: Path) -> FileIdentity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    # ctime cannot be set by a program, so a replaced file is noticed even if it has the old mtime.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A path to write to. Afterwards the file replaces `target` in one step."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as folder:
            file = Path(folder) / target.name
            yield file
            file.replace(target)
    except FileNotFoundError as error:
        raise InfrastructureError(
            f"{target} was not written",
            why=str(error),
            fix="run again; if another program cleans this folder, choose another cache with --cache",
        ) from error
