"""Runs programs that download packages, and prints progress on standard error."""

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
    """Run a program as a task would, without printing its output."""
    from harness.run.programs.process import run_program, scrubbed_environment

    return run_program(
        argv,
        env=scrubbed_environment(os.environ, env),
        cwd=cwd or Path.cwd(),
        write=lambda _line: None,
        timeout=timeout,
        stopped=lambda: False,
    )


#: Seconds before progress is printed.
QUIET_S = 2.0


def announced_fetch(what: str) -> Any:
    """A function that runs pip like `run_quietly`, and first prints that `what` is downloaded."""

    def fetch(
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        click.echo(f"downloading {what} from the package index", err=True)
        return run_quietly(argv, env=env, cwd=cwd, timeout=timeout)

    return fetch


def print_progress(what: str) -> Callable[[int, int], None]:
    """A callback that prints `what: done of total` on standard error, at most once a second."""
    told = time.monotonic() + QUIET_S - 1

    def tell(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= 1:
            told = now
            click.echo(f"{what}: {done} of {total}", err=True)

    return tell
