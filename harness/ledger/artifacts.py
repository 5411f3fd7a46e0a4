"""Files by content: logs, locks, curves. Written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from harness.digest import CHUNK_BYTES, digest_file
from harness.errors import InfrastructureError, Location
from harness.outcome import ArtifactRef

TEXT_LIMIT_BYTES = 1 << 20


class ArtifactStore:
    """Content-addressed files under `folder`: `sha256/ab/cdef...`; safe for any number of writers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(
        self, source: Path | bytes, name: str, media_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        """Store a file or bytes durably; InfrastructureError (nothing half-written) when that fails.

        What is stored is what was read: a file that changes meanwhile has the digest of the bytes taken.
        """
        try:
            with contextlib.closing(_reader(source)) as stream:
                digest, size = self._store(stream)
        except OSError as error:
            raise _unwritable(error, self.folder, name) from error
        return ArtifactRef(name=name, digest=digest, size=size, media_type=media_type)

    def copy_from(self, other: ArtifactStore, refs: Iterable[ArtifactRef]) -> None:
        """Copy what `other` has of `refs` and this one has not.

        What is gone there, or is no longer what its digest says, stays away. InfrastructureError when this
        store cannot be written.
        """
        if other.folder.absolute() == self.folder.absolute():
            return
        for ref in refs:
            with contextlib.suppress(ValueError):
                if not self.has(ref) and other.is_intact(ref):
                    self.put(other.path(ref.digest), ref.name, ref.media_type)

    def get(self, ref: ArtifactRef) -> Path:
        """The stored file, read only; InfrastructureError when it is gone or has not its size."""
        path = self.path(ref.digest)
        try:
            size = path.stat().st_size
        except OSError as error:
            raise _missing(ref, path, error.strerror or str(error)) from error
        if size != ref.size:
            raise _missing(ref, path, f"it has {size} bytes instead of {ref.size}")
        return path

    def has(self, ref: ArtifactRef) -> bool:
        """Whether `get` would find the file."""
        try:
            return self.path(ref.digest).stat().st_size == ref.size
        except OSError:
            return False

    def is_intact(self, ref: ArtifactRef) -> bool:
        """Whether the stored bytes are still the ones that were put there (reads the whole file)."""
        return self.has(ref) and digest_file(self.path(ref.digest)) == ref.digest

    def text(self, ref: ArtifactRef, limit: int = TEXT_LIMIT_BYTES) -> str:
        """The file as text, undecodable bytes replaced; of a longer one the last `limit` bytes, marked so."""
        with self.get(ref).open("rb") as stream:
            left_out = max(0, ref.size - limit)
            stream.seek(left_out)
            text = stream.read(limit).decode("utf-8", "replace")
        return f"[{left_out} bytes before this are not shown]\n{text}" if left_out else text

    def clear_unfinished(self, before: float) -> None:
        """Remove what writers that were killed left half-written before that time (Unix seconds)."""
        for path in (self.folder / "incoming").glob("*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()

    def damaged(self) -> Iterator[str]:
        """Digests of stored files whose bytes have changed (reads everything)."""
        for path in sorted(self.folder.glob("sha256/??/*")):
            digest = path.parent.name + path.name
            if digest_file(path) != digest:
                yield digest

    def path(self, digest: str) -> Path:
        """Where the file with `digest` stands if it is here; ValueError when this is no digest."""
        if len(digest) != hashlib.sha256().digest_size * 2 or not set(digest) <= set("0123456789abcdef"):
            raise ValueError(f"{digest!r} is not a SHA-256 digest")
        return self.folder / "sha256" / digest[:2] / digest[2:]

    def _store(self, stream: BinaryIO) -> tuple[str, int]:
        incoming = self.folder / "incoming"
        incoming.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=incoming)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as target:
                digest, size = _copy(stream, target)
                target.flush()
                os.fsync(target.fileno())
            temporary.chmod(0o444)
            self._publish(temporary, self.path(digest))
        finally:
            temporary.unlink(missing_ok=True)
        return digest, size

    def _publish(self, temporary: Path, final: Path) -> None:
        # Also over a file that is there already: that heals one whose bytes have changed.
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(final)
        descriptor = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _reader(source: Path | bytes) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _copy(stream: BinaryIO, target: BinaryIO) -> tuple[str, int]:
    sha, size = hashlib.sha256(), 0
    while chunk := stream.read(CHUNK_BYTES):
        sha.update(chunk)
        size += len(chunk)
        target.write(chunk)
    return sha.hexdigest(), size


def _unwritable(error: OSError, folder: Path, name: str) -> InfrastructureError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return InfrastructureError(
        f"cannot store artifact {name!r}",
        where=Location(error.filename or folder),
        why=error.strerror or str(error),
        fix="free space on this disk, then run again: nothing recorded is lost"
        if full
        else "make the state folder writable, or choose another one with --state",
    )


def _missing(ref: ArtifactRef, path: Path, why: str) -> InfrastructureError:
    return InfrastructureError(
        f"artifact {ref.name!r} is not in the store",
        where=Location(path),
        why=why,
        fix="run the check that made it again (`npu-matrix run --rerun`)",
    )
