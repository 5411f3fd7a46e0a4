"""Limits the rate of output, so that a program that prints too much neither fills the disk nor the CPU."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

#: Output that is written at once: half the cap of a log, so that the first half of a log is always complete.
BURST_BYTES = 10 << 20
#: Output that is written per second after that.
RATE_BYTES = 2 << 20
#: The last part of the output that came too fast is written nevertheless, because errors are printed last.
DELAYED_BYTES = 64 << 10


class Throttle:
    """A token bucket for lines: `burst` characters at once, then `rate` characters per second.

    Lines that come too fast are delayed. Of the delayed lines only the last `delayed` characters are kept; a
    note in the output says how much was dropped. Not thread-safe.
    """

    def __init__(
        self,
        rate: float = RATE_BYTES,
        burst: float = BURST_BYTES,
        delayed: int = DELAYED_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst, self._most_delayed = rate, burst, delayed
        self._clock = clock
        self._budget, self._updated = burst, clock()
        self._delayed: deque[str] = deque()
        self._size = 0
        self._dropped = 0

    def admit(self, text: str) -> str:
        """The lines to write now, given new lines."""
        now = self._clock()
        self._budget = min(self._burst, self._budget + (now - self._updated) * self._rate)
        self._updated = now
        if self._delayed or self._dropped:
            # The note counts too: the log must not cut it apart.
            if len(self._note()) + self._size + len(text) > self._budget:
                self._delay(text)
                return ""
            text = self.finish() + text
        elif len(text) > self._budget:
            cut = text.rfind("\n", 0, int(self._budget)) + 1
            text, rest = text[:cut], text[cut:]
            self._delay(rest)
        self._budget -= len(text)
        return text

    def finish(self) -> str:
        """The delayed lines, after a note with the size of the dropped lines."""
        text = self._note() + "".join(self._delayed)
        self._delayed.clear()
        self._size = self._dropped = 0
        return text

    def _note(self) -> str:
        if not self._dropped:
            return ""
        return f"[{self._dropped} bytes of output are left out here: it came too fast]\n"

    def _delay(self, text: str) -> None:
        self._delayed.append(text)
        self._size += len(text)
        while self._size > self._most_delayed:
            first = self._delayed.popleft()
            excess = self._size - self._most_delayed
            # Whole lines are dropped if possible: half a line could contain half a secret, which is not
            # masked.
            cut = len(first) if excess >= len(first) else first.find("\n", excess) + 1 or len(first)
            self._dropped += len(first[:cut].encode())
            self._size -= cut
            if first[cut:]:
                self._delayed.appendleft(first[cut:])
