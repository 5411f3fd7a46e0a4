"""Writes a task's log: the whole output, or its beginning and end if there is too much."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

from harness.errors import InfrastructureError, Location
from harness.run.programs.scrub import Scrubber
from harness.run.programs.throttle import Throttle

CAP_BYTES = 20 << 20
LINE_BYTES = 64 << 10


class LineAssembler:
    """Converts chunks of bytes to text of whole lines. Lines longer than `LINE_BYTES` are split."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> str:
        """The lines that `chunk` completes; of a line with carriage returns, the text that it showed last."""
        data = self._rest + chunk
        end = data.rfind(b"\n") + 1
        whole, rest = data[:end], data[end:]
        # A carriage return at the end overwrites the line only if more text follows.
        rest = _shown_last(rest) + b"\r" * rest.endswith(b"\r")
        if len(rest) > LINE_BYTES:
            whole, rest = whole + rest + b"\n", b""
        self._rest = rest
        return _text(whole)

    def finish(self) -> str:
        """The last line, if the output does not end with a newline."""
        rest, self._rest = self._rest, b""
        return _text(rest + b"\n") if rest else ""


class TaskLog:
    """Writes to a file of at most `cap` bytes: the first half at once, the last half when it is closed.

    Output that arrives faster than `throttle` permits is also left out. Several threads may write.
    InfrastructureError if writing fails.
    """

    def __init__(
        self,
        path: Path,
        scrub: Scrubber,
        cap: int = CAP_BYTES,
        throttle: Throttle | None = None,
    ) -> None:
        self.path = path
        self._throttle = throttle or Throttle()
        self.last_line = ""
        self._scrubbed = scrub.stream()
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
        """Append one or more lines; a missing newline at the end is added."""
        if not text:
            return
        text = text if text.endswith("\n") else text + "\n"
        with self._lock:
            text = self._throttle.admit(text)
            if text:
                self._append(text)

    def _append(self, text: str) -> None:
        last_line = text.rstrip().rsplit("\n", 1)[-1]
        self.last_line = self._scrub(last_line).strip() or self.last_line
        self._store(self._scrubbed.feed(text))

    def _store(self, text: str) -> None:
        if text and self._written < self._half:
            text = self._write_first_half(text)
        if text:
            self._append_to_tail(text)

    def close(self) -> None:
        """Write the end of the output, after a line with the size of the output that was left out."""
        with self._lock:
            if self._file.closed:
                return
            try:
                if delayed := self._throttle.finish():
                    self._append(delayed)
                self._store(self._scrubbed.finish())
                if self._dropped:
                    self._put(f"[{self._dropped} bytes of output are left out here]\n")
                for text in self._tail:
                    self._put(text)
            finally:
                self._tail.clear()
                self._file.close()

    def _write_first_half(self, text: str) -> str:
        """Write the lines that fit into the first half, and return the other lines."""
        remaining = self._half - self._written
        if len(text) > remaining:
            cut = text.rfind("\n", 0, remaining) + 1
            text, rest = text[:cut], text[cut:]
        else:
            rest = ""
        self._put(text)
        # Once a line does not fit, shorter lines after it must not be written before it.
        self._written = self._half if rest else self._written + len(text)
        return rest

    def _append_to_tail(self, text: str) -> None:
        self._tail.append(text)
        self._tail_size += len(text)
        while self._tail_size > self._half and len(self._tail) > 1:
            dropped = self._tail.popleft()
            self._tail_size -= len(dropped)
            self._dropped += len(_encoded(dropped))

    def _put(self, text: str) -> None:
        try:
            view = memoryview(_encoded(text))
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise _unwritable(self.path, error) from error


def _encoded(text: str) -> bytes:
    # The text can contain file names that are not UTF-8.
    return text.encode("utf-8", "backslashreplace")


def _shown_last(line: bytes) -> bytes:
    """The text after the last carriage return of a line, which is about what a terminal shows at the end."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _text(whole: bytes) -> str:
    if b"\r" in whole:
        whole = b"\n".join(_shown_last(line) for line in whole.split(b"\n"))
    return whole.decode("utf-8", "replace")


def _unwritable(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(
        "cannot write a task's log",
        where=Location(path),
        why=error.strerror or str(error),
        fix="free space on this disk or make the state folder writable, then run again",
    )
