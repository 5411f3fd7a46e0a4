"""A task's log: its whole output while that is short and slow, head and tail when it floods."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from harness.errors import InfrastructureError, Location
from harness.run.programs.throttle import Throttle

CAP_BYTES = 20 << 20
LINE_BYTES = 64 << 10


class LineAssembler:
    """Turns the byte chunks of a pipe into text of whole lines, none much longer than `LINE_BYTES`."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> str:
        """The lines completed by `chunk`; of a line redrawn by carriage returns, what it showed last."""
        data = self._rest + chunk
        end = data.rfind(b"\n") + 1
        whole, rest = data[:end], data[end:]
        # A carriage return at the end erases the line only if something more is drawn.
        rest = _as_drawn(rest) + b"\r" * rest.endswith(b"\r")
        if len(rest) > LINE_BYTES:
            whole, rest = whole + rest + b"\n", b""
        self._rest = rest
        return _text(whole)

    def finish(self) -> str:
        """What is left when the output ends without a newline."""
        rest, self._rest = self._rest, b""
        return _text(rest + b"\n") if rest else ""


class TaskLog:
    """Appends to a file of at most `cap` bytes: the first half as it comes, the last half when it is closed.

    What comes faster than `throttle` permits is left out too. Any thread may write. InfrastructureError when
    the disk refuses.
    """

    def __init__(
        self,
        path: Path,
        scrub: Callable[[str], str],
        cap: int = CAP_BYTES,
        throttle: Throttle | None = None,
    ) -> None:
        self.path = path
        self._throttle = throttle or Throttle()
        self.last_line = ""
        self._scrub = scrub
        self._half = cap // 2
        self._lock = threading.Lock()
        self._written = 0
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._dropped = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise _unwritable(path, error) from error

    def write(self, text: str) -> None:
        """Append one or more lines; a missing last newline is added."""
        if not text:
            return
        text = text if text.endswith("\n") else text + "\n"
        with self._lock:
            text = self._throttle.admit(text)
            if text:
                self._keep(text)

    def _keep(self, text: str) -> None:
        text = self._scrub(text)
        self.last_line = text[:-1].rsplit("\n", 1)[-1].strip() or self.last_line
        if self._written < self._half:
            text = self._to_file(text)
        if text:
            self._to_tail(text)

    def close(self) -> None:
        """Write the tail, with a line saying what was left out before it."""
        with self._lock:
            if self._file.closed:
                return
            try:
                if held := self._throttle.finish():
                    self._keep(held)
                if self._dropped:
                    self._put(f"[{self._dropped} bytes of output are left out here]\n")
                for text in self._tail:
                    self._put(text)
            finally:
                self._tail.clear()
                self._file.close()

    def _to_file(self, text: str) -> str:
        """Write what fits into the first half, cut at a line, and return the rest."""
        room = self._half - self._written
        if len(text) > room:
            cut = text.rfind("\n", 0, room) + 1
            text, rest = text[:cut], text[cut:]
        else:
            rest = ""
        self._put(text)
        # A line too long for the room that is left must not let later, shorter ones in front of it.
        self._written = self._half if rest else self._written + len(text)
        return rest

    def _to_tail(self, text: str) -> None:
        self._tail.append(text)
        self._tail_size += len(text)
        while self._tail_size > self._half and len(self._tail) > 1:
            gone = self._tail.popleft()
            self._tail_size -= len(gone)
            self._dropped += len(_encoded(gone))

    def _put(self, text: str) -> None:
        try:
            view = memoryview(_encoded(text))
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise _unwritable(self.path, error) from error


def _encoded(text: str) -> bytes:
    # A file name that is not UTF-8 must not cost the log.
    return text.encode("utf-8", "backslashreplace")


def _as_drawn(line: bytes) -> bytes:
    """What a terminal shows of a line with carriage returns: the last thing drawn, nearly."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _text(whole: bytes) -> str:
    if b"\r" in whole:
        whole = b"\n".join(_as_drawn(line) for line in whole.split(b"\n"))
    return whole.decode("utf-8", "replace")


def _unwritable(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        "cannot write a task's log",
        where=Location(path),
        why=error.strerror or str(error),
        fix="free space on this disk or make the state folder writable, then run again",
    )
