"""Replaces a file in one step, so that nobody sees half of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def replace_bytes(target: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace a file with these bytes. OSError leaves it as it was.

    mode: its permissions; None for those that the file has, which must exist then.
    """
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(target.stat().st_mode & 0o7777 if mode is None else mode)
        temporary.replace(target)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise
