"""The ledger of the state folder, as commands open it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.errors import InputError, Location
from harness.settings import Settings

if TYPE_CHECKING:
    from harness.ledger.store import Ledger


def open_ledger(settings: Settings) -> Ledger:
    """The ledger; what had to be set aside is told on stderr, whichever command comes upon it first."""
    from harness.ledger.store import Ledger

    ledger = Ledger.open(settings.path("state"))
    for notice in ledger.notices:
        click.echo(f"note: {notice}", err=True)
    return ledger


def ledger_file(path: Path) -> Path:
    """The ledger that a path names: the file itself, or the state folder it is in; InputError without one."""
    from harness.ledger.store import FILE_NAME

    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            "there is no ledger here", where=Location(path), fix=f"name a folder with {FILE_NAME}"
        )
    return file
