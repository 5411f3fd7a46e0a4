"""The command that asks one question of one cell again: everything that prints one takes it from here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from harness.settings import DEFAULT_PROFILE


def reproduce_command(
    cell_id: str, check: str, *, profile: str = DEFAULT_PROFILE, options: Sequence[str] = ()
) -> str:
    """A shell line. `options`: the settings a new shell would not have by itself (`Settings.flags`)."""
    chosen = () if profile == DEFAULT_PROFILE else ("--profile", profile)
    return shlex.join(
        ["npu-matrix", *options, *chosen, "run", "--only", cell_id, "--check", check, "--fresh"]
    )
