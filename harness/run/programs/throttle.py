"""A rate limit for output: a program that floods costs its log neither the disk nor this machine's time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

#: What a log takes without a pause: half of its cap, so that its first half is always as it came.
BURST_BYTES = 10 << 20
#: And every second after that; nobody reads faster.
RATE_BYTES = 2 << 20
#: The end of what is left out is kept: an error is printed last.
KEPT_BYTES = 64 << 10


class Throttle:
    """Lets lines through at `rate` bytes a second after a `burst`; says how much it leaves out, and where.

    Sizes are those of the text as Unicode characters. Not for several threads at a time.
    """

    def __init__(
        self,
        rate: float = RATE_BYTES,
        burst: float = BURST_BYTES,
        kept: int = KEPT_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst, self._most = rate, burst, kept
        self._clock = clock
        self._room, self._at = burst, clock()
        self._kept: deque[str] = deque()
        self._size = 0
        self._dropped = 0

    def admit(self, text: str) -> str:
        """What of these lines goes into the log now."""
        now = self._clock()
        self._room = min(self._burst, self._room + (now - self._at) * self._rate)
        self._at = now
        if self._kept or self._dropped:
            # The note counts too: cut off with what follows it, it would be taken for output.
            if len(self._note()) + self._size + len(text) > self._room:
                self._hold(text)
                return ""
            text = self.finish() + text
        elif len(text) > self._room:
            cut = text.rfind("\n", 0, int(self._room)) + 1
            text, rest = text[:cut], text[cut:]
            self._hold(rest)
        self._room -= len(text)
        return text

    def finish(self) -> str:
        """The end of what was held back, with a line saying how much before it is left out."""
        text = self._note() + "".join(self._kept)
        self._kept.clear()
        self._size = self._dropped = 0
        return text

    def _note(self) -> str:
        if not self._dropped:
            return ""
        return f"[{self._dropped} bytes of output are left out here: it came too fast]\n"

    def _hold(self, text: str) -> None:
        self._kept.append(text)
        self._size += len(text)
        while self._size > self._most:
            first = self._kept.popleft()
            over = self._size - self._most
            # Cut at a line where there is one: half a line could be half a secret.
            cut = len(first) if over >= len(first) else first.find("\n", over) + 1 or len(first)
            self._dropped += len(first[:cut].encode())
            self._size -= cut
            if first[cut:]:
                self._kept.appendleft(first[cut:])
