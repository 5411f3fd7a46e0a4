"""Where this machine keeps clones of upstream repositories."""

from __future__ import annotations

import os
from pathlib import Path

#: The environment variable: checks run where no settings are, and so do the programs they start.
MIRRORS = "NPU_MATRIX_MIRRORS"


def mirrors_folder() -> Path | None:
    """The folder of clones and bare mirrors, or None when the user names none."""
    folder = os.environ.get(MIRRORS)
    return Path(folder) if folder else None
