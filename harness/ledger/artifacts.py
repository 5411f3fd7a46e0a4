"""Stores files under the digest of their content: logs, lock files, curves."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from harness.digest import CHUNK_BYTES, VerifiedContents, is_digest
from harness.errors import InfrastructureError, Location
from harness.outcome import ArtifactRef


class ArtifactStore:
    """Content-addressed files: `folder/sha256/ab/cdef...`. Several processes may write at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._verified = VerifiedContents()

    def put(
        self, source: Path | bytes, name: str, media_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        """Store a file or bytes durably and as a whole, or raise InfrastructureError.

        The digest is that of the bytes stored, also if the source file changes meanwhile.
        """
        try:
            stream = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
            with stream:
                digest, size = self._store(stream)
        except OSError as error:
            raise _unwritable(error, self.folder, name) from error
        return ArtifactRef(name=name, digest=digest, size=size, media_type=media_type)

    def copy_from(self, other: ArtifactStore, refs: Iterable[ArtifactRef]) -> None:
        """Copy those files of `refs` that `other` has and this store lacks.

        Files that no longer exist in `other`, or whose content does not match their digest, are skipped.
        InfrastructureError if this store cannot be written.
        """
        if other.folder.absolute() == self.folder.absolute():
            return
        for ref in refs:
            if not self.is_intact(ref) and other.is_intact(ref):
                self.put(other.path(ref.digest), ref.name, ref.media_type)

    def get(self, ref: ArtifactRef) -> Path:
        """Path of the stored, read-only file; InfrastructureError if it is missing or was changed."""
        path = self.path(ref.digest)
        try:
            size = path.stat().st_size
        except OSError as error:
            raise _missing(ref, path, error.strerror or str(error)) from error
        if size != ref.size:
            raise _missing(ref, path, f"it has {size} bytes instead of {ref.size}")
        if not self.is_intact(ref):
            raise _missing(ref, path, "its content was changed: it does not match its digest")
        return path

    def is_intact(self, ref: ArtifactRef) -> bool:
        """Whether the stored content matches the digest. Reads the file once, until its status changes."""
        path = self.path(ref.digest)
        try:
            return path.stat().st_size == ref.size and self._verified.has_digest(path, ref.digest)
        except OSError:
            return False

    def is_altered(self, ref: ArtifactRef) -> bool:
        """Whether there is a file with other content in the place of this one."""
        return self.path(ref.digest).exists() and not self.is_intact(ref)

    def clear_unfinished(self, before: float) -> None:
        """Remove incomplete files of killed writers that are older than `before` (Unix seconds)."""
        for path in (self.folder / "incoming").glob("*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()

    def path(self, digest: str) -> Path:
        """Path of the file with `digest`, which need not exist; ValueError if this is not a digest."""
        if not is_digest(digest):
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
        # Replacing an existing file repairs it, should its bytes have changed.
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(final)
        descriptor = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _copy(stream: BinaryIO, target: BinaryIO) -> tuple[str, int]:
    sha, size = hashlib.sha256(), 0
    while chunk := stream.read(CHUNK_BYTES):
        sha.update(chunk)
        size += len(chunk)
        target.write(chunk)
    return sha.hexdigest(), size


def _unwritable(error: OSError, folder: Path, name: str) -> InfrastructureError:
    return InfrastructureError(
        f"cannot store artifact {name!r}",
        where=Location(error.filename or folder),
        why=error.strerror or str(error),
        fix="make the state folder writable, or choose another one with --state",
    )


def _missing(ref: ArtifactRef, path: Path, why: str) -> InfrastructureError:
    return InfrastructureError(
        f"artifact {ref.name!r} is not in the store",
        where=Location(path),
        why=why,
        fix="repeat the check that wrote it (`npu-matrix run --rerun`)",
    )
