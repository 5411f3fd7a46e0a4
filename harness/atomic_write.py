"""Replaces a file that a user owns in one step, so that nobody sees half of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def replace_bytes(target: Path, data: bytes) -> None:
    """Replace an existing file with these bytes, with the same permissions. OSError leaves it as it was."""
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise
