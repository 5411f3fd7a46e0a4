"""Ctrl-C and its like: the first asks the run to stop, the second does not wait for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from harness.errors import EXIT_INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """While entered (main thread only), notes SIGINT, SIGTERM and SIGHUP instead of dying of them.

    SIGHUP is left alone where `nohup` had it ignored: that run is meant to outlive its terminal.
    Call it to learn whether one came. The second raises KeyboardInterrupt where the program stands, the
    third ends the process at once with exit code 130: programs it runs are then stopped by their
    supervisors, and what was recorded stays recorded.
    """

    def __init__(self) -> None:
        self.received = 0
        self._former: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __call__(self) -> bool:
        """Whether the run has been asked to stop."""
        return self.received > 0

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.received += 1
        if self.received > 2:
            os._exit(EXIT_INTERRUPTED)
        if self.received > 1:
            raise KeyboardInterrupt
