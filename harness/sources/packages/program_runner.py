"""The type of functions that run a program: the lookup of packages is used by checks and by commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from harness.check import Completed


class ProgramRunner(Protocol):
    """A function that runs a program, such as `TaskContext.command`."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Run `argv` and wait for it."""
