"""Digests of content. Everything that this project stores or compares by content uses these functions."""

from __future__ import annotations

import hashlib
import json
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


def digest_tree(root: Path, files: Iterable[Path]) -> str:
    """Digest of the files' contents and of their paths relative to `root`; independent of the order."""
    entries = sorted((path.relative_to(root).as_posix(), digest_file(path)) for path in files)
    return digest_json(entries)
