"""Reads a training's telemetry while it is written, and stops the training once the decision cannot change.

Host side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from harness.convergence.telemetry.series import Series
from harness.convergence.telemetry.training_records import EarlyStop

if TYPE_CHECKING:
    from typing import Self

# A step of the tiny trainings takes 0.1 s to some seconds, one on hardware minutes.
POLL_SECONDS = 0.5

# Called with the series so far; returns why the run can be stopped now, or "".
StopReason = Callable[[Series], str]


class Watcher:
    """Watches one training in a thread: `with Watcher(...) as watcher: train()`.

    read: returns the series that the training has written so far, empty before the first step.
    stop_reason: called after each new step except the last of `steps`.
    stop_file: created when the training should stop; the training checks whether it exists.
    """

    def __init__(
        self, *, read: Callable[[], Series], stop_reason: StopReason, steps: int, stop_file: Path
    ) -> None:
        self.stop: EarlyStop | None = None
        self._read, self._stop_reason = read, stop_reason
        self._steps, self._stop_file = steps, stop_file
        self._seen = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            self.look()
            if self.stop is not None:
                return

    def look(self) -> None:
        """Read the steps made so far, and create the stop file if they decide."""
        series = self._read()
        made = min((len(values) for values in series.values()), default=0)
        if made <= self._seen or made >= self._steps:
            return
        self._seen = made
        reason = self._stop_reason({name: values[:made] for name, values in series.items()})
        if reason:
            self.stop = EarlyStop(after=made, of=self._steps, reason=reason)
            self._stop_file.write_text(reason, encoding="utf-8")
