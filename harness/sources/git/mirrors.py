"""Where this machine keeps clones of upstream repositories."""

from __future__ import annotations

import os
from pathlib import Path

#: The environment variable: checks run where no settings are, and so do the programs they start.
MIRRORS = "NPU_MATRIX_MIRRORS"

#: What to do where a commit is not at hand.
COMMIT_REMEDY = f"Set {MIRRORS} to a folder with a clone or bare mirror that has the commit."


def mirrors_folder() -> Path | None:
    """The folder of clones and bare mirrors, or None when the user names none."""
    folder = os.environ.get(MIRRORS)
    return Path(folder) if folder else None
