"""The ledger of the state folder, as commands open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

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
