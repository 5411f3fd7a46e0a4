"""Reads a training's telemetry while it is being written, and ends it once it need not go on. Host side.

A run that is bad enough to fail, or to want other seeds, costs no more steps; how many it saved is told.
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

# The series so far -> why the run need not go on, or "".
Verdict = Callable[[Series], str]


class Watcher:
    """Watches one training in a thread of its own, as a context: `with Watcher(...) as watcher: train()`.

    read: the series that the training has written so far, empty while there is nothing. verdict: called after
    each new step but the last of `steps`. stop_file: made when the run shall end; the training looks for it.
    """

    def __init__(self, *, read: Callable[[], Series], verdict: Verdict, steps: int, stop_file: Path) -> None:
        self.stop: EarlyStop | None = None
        self._read, self._verdict = read, verdict
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
        """Judge what is there now, and make the stop file when it is enough."""
        series = self._read()
        made = min((len(values) for values in series.values()), default=0)
        if made <= self._seen or made >= self._steps:
            return
        self._seen = made
        reason = self._verdict({name: values[:made] for name, values in series.items()})
        if reason:
            self.stop = EarlyStop(after=made, of=self._steps, reason=reason)
            self._stop_file.write_text(reason, encoding="utf-8")
