"""The option `--fetch/--no-fetch` of commands that fetch missing commits of upstream repositories."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from harness.settings import Settings

fetch_option: Callable[[Any], Any] = click.option(
    "--fetch/--no-fetch",
    default=None,
    help="Fetch commits of upstream repositories that are not on this disk. Default: fetch.",
)


def with_fetch(settings: Settings, fetch: bool | None) -> Settings:
    """The settings with this option, which checks in this process read too; None changes nothing."""
    if fetch is None:
        return settings
    changed = settings.overridden({"fetch": str(fetch).lower()})
    os.environ.update(changed.exported())
    return changed
