"""Opens the ledger of the state folder."""

from __future__ import annotations

import logging
from pathlib import Path

from harness.errors import InputError, Location
from harness.ledger.store import FILE_NAME, Ledger
from harness.settings import Settings

LOGGER = logging.getLogger(__name__)


def open_ledger(settings: Settings) -> Ledger:
    """Open the ledger; log a warning if a damaged file had to be moved away."""
    ledger = Ledger.open(settings.path("state"))
    for notice in ledger.notices:
        LOGGER.warning("note: %s", notice)
    return ledger


def ledger_file(path: Path) -> Path:
    """The ledger file at `path`, a file or a state folder; InputError if there is none."""
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            "there is no ledger here", where=Location(path), fix=f"give a folder that contains {FILE_NAME}"
        )
    return file
