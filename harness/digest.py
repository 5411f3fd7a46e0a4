"""Digests of content. Everything that this project stores or compares by content uses these functions."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable
from pathlib import Path

from harness.serialisation import encode_object

CHUNK_BYTES = 1 << 20
FILE_CHUNK_BYTES = 1 << 18


def canonical_json(value: object) -> str:
    """The canonical JSON text of `value`: sorted keys, no spaces. ValueError for NaN and infinity."""
    return json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
        default=encode_object,
    )


def digest_bytes(data: bytes) -> str:
    """SHA-256 as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def is_digest(text: str) -> bool:
    """Whether a text has the form of a SHA-256 digest."""
    return len(text) == hashlib.sha256().digest_size * 2 and set(text) <= set("0123456789abcdef")


def digest_json(value: object) -> str:
    """Digest of the canonical JSON of `value`."""
    return digest_bytes(canonical_json(value).encode())


def digest_file(path: Path) -> str:
    """Digest of a file's bytes, read in chunks."""
    sha = hashlib.sha256()
    # Without a buffer and with small chunks, because most files are far smaller than a chunk.
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(FILE_CHUNK_BYTES):
            sha.update(chunk)
    return sha.hexdigest()


FileIdentity = tuple[int, int, int, int, int]


class VerifiedContents:
    """The content of files that this process has verified. Each is read once, until its status changes."""

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
        # The status is read before the file, so that a change while it is read is noticed next time.
        identity = _identity(path)
        if identity is None:
            return False
        if self._verified.get((path, sha256)) != identity:
            try:
                if digest_file(path) != sha256:
                    return False
            except OSError:
                return False
            self._verified[path, sha256] = identity
        return True


def _identity(path: Path) -> FileIdentity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    # Reading a pipe or a device might never end.
    if not stat.S_ISREG(status.st_mode):
        return None
    # ctime cannot be set by a program, so a replaced file is noticed even if it has the old mtime.
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def digest_tree(root: Path, files: Iterable[Path]) -> str:
    """Digest of the files' contents and of their paths relative to `root`; independent of the order."""
    entries = sorted((path.relative_to(root).as_posix(), digest_file(path)) for path in files)
    return digest_json(entries)
