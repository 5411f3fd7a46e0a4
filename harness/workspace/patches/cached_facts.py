"""Stores JSON that was computed for the pages of patches in the cache folder, with a seal next to it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.atomic_write import replace_bytes
from harness.cache_seal import SEAL_LENGTH, sealed, unsealed

SEAL_SUFFIX = ".seal"


def cached_facts(file: Path, compute: Callable[[], Mapping[str, object]]) -> Path:
    """The file, with the JSON that `compute` returns. It is computed again unless its seal is of this user.

    OSError if the folder cannot be written.
    """
    seal = file.with_suffix(SEAL_SUFFIX)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if unsealed(file.name, seal.read_text("utf-8") + file.read_text("utf-8")) is not None:
            return file
    facts = json.dumps(compute())
    file.parent.mkdir(parents=True, exist_ok=True)
    # A cache may be shared between users.
    replace_bytes(file, facts.encode(), mode=0o644)
    replace_bytes(seal, sealed(file.name, facts)[:SEAL_LENGTH].encode(), mode=0o644)
    return file
