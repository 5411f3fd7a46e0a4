"""Seals of computed results in the cache: a result counts only if npu-matrix of this user computed it.

Such a result decides keys and verdicts, and only computing it again could verify it. Whoever can write to
the cache (another user, or a CI job whose cache is restored) must not decide them. A seal is an HMAC-SHA256
with a secret that lies in the user's state folder, outside of every cache.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

from harness.user_folders import xdg_folder

SECRET_BYTES = 32
#: The length of a seal, in hex digits.
SEAL_LENGTH = 64


def sealed(name: str, text: str) -> str:
    """The text with its seal, to be stored under `name`. It counts under no other name."""
    return _seal(name, text) + text


def unsealed(name: str, stored: str) -> str | None:
    """The text that was sealed for this name, or None if anything about it is different."""
    seal, text = stored[:SEAL_LENGTH], stored[SEAL_LENGTH:]
    return text if hmac.compare_digest(seal.encode(), _seal(name, text).encode()) else None


def _seal(name: str, text: str) -> str:
    parts = [part.encode("utf-8", "surrogatepass") for part in (name, text)]
    message = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.new(_secret_in(_secret_file()), message, hashlib.sha256).hexdigest()


def _secret_file() -> Path:
    return xdg_folder("XDG_STATE_HOME", os.environ) / "npu-matrix" / "cache-secret"


@functools.cache
def _secret_in(file: Path) -> bytes:
    """The secret of this user; one of this process only, if it cannot be stored."""
    if not file.is_absolute():
        # HOME is relative: it would lie in the current folder, where others may have put one.
        return secrets.token_bytes(SECRET_BYTES)
    found = _read(file)
    if not found:
        with contextlib.suppress(OSError):
            _create(file)
            found = _read(file)
    return found or secrets.token_bytes(SECRET_BYTES)


def _read(file: Path) -> bytes:
    try:
        found = file.read_bytes()
    except OSError:
        return b""
    return found if len(found) == SECRET_BYTES else b""


def _create(file: Path) -> None:
    """Store a new secret. If several processes do it at the same time, they all read the same one then."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(SECRET_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(name, file)
    finally:
        Path(name).unlink(missing_ok=True)
