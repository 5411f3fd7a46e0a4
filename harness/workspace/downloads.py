"""Runs programs that download packages, and logs their progress."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.check import Completed
from harness.run.programs.process import run_program, scrubbed_environment

LOGGER = logging.getLogger(__name__)


def run_quietly(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
) -> Completed:
    """Run a program as a task would, without printing its output."""
    return run_program(
        argv,
        env=scrubbed_environment(os.environ, env),
        cwd=cwd or Path.cwd(),
        write=lambda _line: None,
        timeout=timeout,
        stopped=lambda: False,
    )


#: Seconds before progress is logged.
QUIET_S = 2.0


def announced_fetch(what: str) -> Any:
    """A function like `run_quietly` that logs once that `what` is looked up."""
    announced = False

    def fetch(
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        nonlocal announced
        if not announced:
            LOGGER.info("looking up %s on the package index", what)
        announced = True
        return run_quietly(argv, env=env, cwd=cwd, timeout=timeout)

    return fetch


def progress_logger(what: str) -> Callable[[int, int], None]:
    """A callback that logs `WHAT: DONE of TOTAL`, at most once a second, and not in the first two seconds."""
    last = time.monotonic() + QUIET_S - 1

    def log(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 1:
            last = now
            LOGGER.info("%s: %d of %d", what, done, total)

    return log
