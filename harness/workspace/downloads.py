"""Programs that fetch packages, and progress messages on standard error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from harness.check import Completed


def run_quietly(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
) -> Completed:
    """Run a program quietly, as a task would."""
    from harness.run.programs.process import run_program, scrubbed_environment

    return run_program(
        argv,
        env=scrubbed_environment(os.environ, env),
        cwd=cwd or Path.cwd(),
        write=lambda _line: None,
        timeout=timeout,
        stopped=lambda: False,
    )


#: Work that takes longer than this says how far it is.
QUIET_S = 2.0


def announced_fetch(what: str) -> Any:
    """Runs pip as `lint` does, and says so: a download can take long."""

    def fetch(
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        click.echo(f"fetching {what} from the package index", err=True)
        return run_quietly(argv, env=env, cwd=cwd, timeout=timeout)

    return fetch


def print_progress(what: str) -> Callable[[int, int], None]:
    """Tells on standard error how far work is, once a second, when it takes long."""
    told = time.monotonic() + QUIET_S - 1

    def tell(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= 1:
            told = now
            click.echo(f"{what}: {done} of {total}", err=True)

    return tell
