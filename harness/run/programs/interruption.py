"""Handles Ctrl-C and similar signals: the first stops the run in order, the second stops it at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from harness.errors import EXIT_INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """A context manager for the main thread that counts SIGINT, SIGTERM and SIGHUP instead of dying of them.

    Call it to find out whether a signal has arrived. The second signal raises KeyboardInterrupt. The third
    ends the process at once with exit code 130; the supervisors then stop the programs of the tasks, and
    recorded outcomes are kept. If SIGHUP is ignored (`nohup`), it stays ignored.
    """

    def __init__(self) -> None:
        self.received = 0
        self._previous_handlers: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    def __call__(self) -> bool:
        """Whether a signal has arrived."""
        return self.received > 0

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._previous_handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.received += 1
        if self.received > 2:
            os._exit(EXIT_INTERRUPTED)
        if self.received > 1:
            raise KeyboardInterrupt
