"""Reads Python tracebacks from logs: separates processes, removes Ray's wrapping, and normalises stacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice

from harness.digest import digest_json
from harness.verdict.triage.log_line import LogLine, shown

HEAD = "Traceback (most recent call last)"
# A traceback begins its line, or follows a label such as `Exception in thread T: ` or the echo of Ctrl-C.
# Elsewhere it is cited.
HEAD_LINE = re.compile(
    r"(?:\^C){0,9}(?:[^\"'`{}\\]{0,120}[:\]>|)] ?)?\s*[+|\s]*(?:Exception Group )?" + re.escape(HEAD)
)
FRAME = re.compile(
    r'\s*File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,200}))?'
)
HEADLESS = re.compile(r'\s*File "[^"]{1,1000}", line \d{1,9}, in \S')
#: A frame of a traceback contains this text.
FRAME_NEEDLE = '", line '
EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200}(?:\([\w.]{1,200}\))?)(?::(?: (?P<message>.*))?)?$")
# After `ray.exceptions.RayTaskError(ValueError): ray::Worker.run() (pid=1, ip=...)` the worker's stack
# follows.
RAY_WRAPPER = re.compile(
    r"(?:ray\.exceptions\.)?(?:RayTaskError|ActorDiedError|RayActorError)\b|.{0,300}\bray::\S{1,200} \(pid="
)
# A message that ends like this goes on in the next line, or in two: pydantic names class, field and reason.
CONTINUED = re.compile(r":\s*$")
CONTINUED_TWICE = re.compile(r"\bvalidation errors? for \S{1,200}$|^[\w.]{1,200}:\s*$")
#: Of how many more lines a message is put together, and the line that a compiler draws around its report.
MOST_PARTS = 4
RULE = re.compile(r"-{8}.{0,40}-{8}")
#: A traceback has at most this many lines of its process, and of all processes while it is open.
MOST_LINES = 400
MOST_LINES_BETWEEN = 20_000
MOST_UNFINISHED = 50
#: Ray's and vLLM's prefix with the name of a process, which may be coloured.
NAMED_PROCESS = re.compile(rb"(?:\x1b\[[\d;]{0,8}m)?\([^\s()]{1,80} pid=\d")
CLUSTER_FRAMES = 6
SHORTENED = 500

#: The type of a traceback whose end, with the exception, is not in the log.
UNFINISHED = "unfinished traceback"
#: Exceptions that only report the failure of another process or program.
SECONDARY_TYPES = frozenset(
    {
        "SystemExit",
        "KeyboardInterrupt",
        "BrokenPipeError",
        "ConnectionResetError",
        "CalledProcessError",
        "ChildFailedError",
        "DistBackendError",
        "DistStoreError",
        "ActorDiedError",
        "ActorUnavailableError",
        "RayActorError",
        "RayTaskError",
        "WorkerCrashedError",
        "OwnerDiedError",
        "TaskCancelledError",
        "EngineDeadError",
        "ERROR",
    }
)
# Frames of libraries that only forward calls, which are irrelevant for the failure.
FORWARDING = re.compile(
    r"(?:^|/)(?:ray/_private|ray/util/tracing|ray/dashboard|hydra/_internal|hydra/main|concurrent/futures|asyncio|"
    r"threading|multiprocessing|runpy|importlib|torch/utils/_contextlib|torch/nn/modules/module|"
    r"verl/single_controller|tensordict/_contextlib|contextlib|functools)\b|^<frozen "
)
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{12,}\b|\d+(?:\.\d+)?")
PATHS = re.compile(r"(?:/[\w.@+-]+){2,}")


@dataclass(frozen=True)
class Frame:
    """One frame of a stack. code: the line of source that the traceback shows, or ""."""

    file: str
    line: int
    function: str
    code: str = ""

    @property
    def place(self) -> str:
        """The file, relative to the folder of its package, and the function. It is equal on all hosts."""
        file = re.split(r"/(?:site|dist)-packages/|/python3\.\d+/", self.file)[-1]
        return f"{'/'.join(file.split('/')[-4:])}:{self.function}"


@dataclass(frozen=True, kw_only=True)
class LoggedFailure:
    """An exception or crash in a log. `first` and `line` are the first and last line of its traceback."""

    type: str
    message: str
    line: int
    first: int
    process: str
    rank: int | None
    frames: tuple[Frame, ...] = ()

    @property
    def secondary(self) -> bool:
        """Whether it only reports another failure."""
        return self.type.rpartition(".")[2].partition("(")[0] in SECONDARY_TYPES

    @property
    def text(self) -> str:
        """Type and message as Python prints them."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def stack(self) -> tuple[str, ...]:
        """The innermost frames without forwarding libraries, outermost first."""
        places = (frame.place for frame in reversed(self.frames))
        inner = list(islice((place for place in places if not FORWARDING.search(place)), CLUSTER_FRAMES))
        return tuple(reversed(inner))

    @property
    def cluster(self) -> str:
        """A digest of type, stack, and message without numbers and paths: equal for the same failure."""
        name = self.type.rpartition(".")[2]
        return digest_json([name, normalised(self.message), list(self.stack)])[:12]


def normalised(message: str) -> str:
    """A message without the parts that differ between runs: addresses, numbers, folders."""
    return NUMBERS.sub("N", PATHS.sub(lambda path: path[0].rpartition("/")[2], message))[:SHORTENED]


@dataclass
class _OpenTraceback:
    first: int
    rank: int | None
    last: int
    seen: int = 0
    frames: list[Frame] = field(default_factory=list)
    wrapped: str = ""
    # The exception whose message goes on, what was read of it, and how many lines are missing.
    kind: str = ""
    message: str = ""
    missing: int = 0
    parts: int = 0


class TracebackReader:
    """Reads the lines of a log in order. Each process has at most one unfinished traceback.

    unfinished: how many tracebacks ended without an exception. Of these the first `most` are kept, and those
    that the log ends with; after them a traceback without its beginning is no longer read.
    """

    def __init__(self, most: float = MOST_UNFINISHED) -> None:
        self._most = most
        self._open: dict[str, _OpenTraceback] = {}
        self._given_up: list[LoggedFailure] = []
        self.unfinished = 0
        self._look_again = 0

    @property
    def has_many_unfinished(self) -> bool:
        """Whether so many tracebacks had no end that further ones tell nothing."""
        return self.unfinished >= self._most

    @property
    def busy(self) -> bool:
        """Whether a traceback has begun, to which the next lines may belong."""
        return bool(self._open)

    def is_open(self, process: str) -> bool:
        """Whether a traceback of this process has begun."""
        return process in self._open

    def may_own(self, data: bytes, start: int, end: int) -> bool:
        """Whether the line `data[start:end]` may be of a process with an open traceback.

        This takes a hundredth of the time that parsing the line takes.
        """
        if "" in self._open and not NAMED_PROCESS.match(data, start):
            return True
        return any(data.find(_mark(process), start, end) >= 0 for process in self._open if process)

    def feed(self, number: int, line: LogLine) -> LoggedFailure | None:
        """The failure that ends with this line, or None."""
        if number >= self._look_again:
            self._give_up(lambda found: number - found.first >= MOST_LINES_BETWEEN)
            self._look_again = number + MOST_LINES
        continued = self._open.get(line.process)
        if continued is not None:
            continued.seen += 1
            if continued.seen > MOST_LINES:
                self._give_up(lambda found: found is continued)
                continued = None
        if continued is not None and continued.kind:
            return self._continue_message(continued, number, line)
        if HEAD_LINE.match(line.body):
            self.unfinished += continued is not None
            if self.has_many_unfinished:
                self._open.pop(line.process, None)
                return None
            self._open[line.process] = _OpenTraceback(first=number, last=number, rank=line.rank)
            return None
        own = self._open.get(line.process)
        if own is None and not self.has_many_unfinished and HEADLESS.match(line.body) and not line.is_mild:
            # The beginning of this traceback is missing: the log was cut, or Ray left out repeated lines.
            own = self._open[line.process] = _OpenTraceback(first=number, last=number, rank=line.rank)
        return self._continue(own, number, line) if own else None

    def go_on(self, failure: LoggedFailure) -> bool:
        """Whether the message of a failure without a traceback goes on; `feed` returns it at its end."""
        missing = _missing_lines(failure.text)
        if missing and failure.process not in self._open:
            self._open[failure.process] = _OpenTraceback(
                first=failure.line,
                last=failure.line,
                rank=failure.rank,
                kind=failure.type,
                message=failure.message,
                missing=missing,
            )
        return missing > 0

    def finish(self) -> list[LoggedFailure]:
        """The unfinished tracebacks of the log, as failures without a message."""
        kept, self._given_up = self._given_up, []
        self._give_up(lambda _found: True)
        return [*kept, *self._given_up]

    def _give_up(self, when: Callable[[_OpenTraceback], bool]) -> None:
        for process, found in [one for one in self._open.items() if when(one[1])]:
            del self._open[process]
            self.unfinished += 1
            if len(self._given_up) >= self._most:
                continue
            if found.frames or found.wrapped or found.kind or not found.seen:
                kind = found.kind or found.wrapped or UNFINISHED
                self._given_up.append(_failure(found, kind, found.message, found.last, process))

    def _continue(self, found: _OpenTraceback, number: int, line: LogLine) -> LoggedFailure | None:
        body = line.body
        found.last = number
        frame = FRAME.match(body)
        if frame:
            found.frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or ""))
            return None
        if not body.strip() or body[0] in " \t":
            if found.frames and not found.frames[-1].code and body.strip():
                found.frames[-1] = replace(found.frames[-1], code=shown(body.strip(), 300))
            return None
        if RAY_WRAPPER.match(body):
            found.wrapped = body
            found.frames.clear()
            return None
        exception = EXCEPTION.match(body)
        if not exception:
            return None
        found.rank = found.rank if found.rank is not None else line.rank
        found.missing = _missing_lines(body)
        if found.missing:
            found.kind = (exception["type"] or "").removesuffix(":")
            found.message = exception["message"] or ""
            return None
        del self._open[line.process]
        return _failure(found, exception["type"], exception["message"] or "", number, line.process)

    def _continue_message(self, found: _OpenTraceback, number: int, line: LogLine) -> LoggedFailure | None:
        """Add a line to a message; the failure if the message ends with it or before it."""
        is_head = bool(HEAD_LINE.match(line.body))
        body = line.body.strip()
        if body and not is_head and not FRAME.match(line.body):
            found.last = number
            if RULE.search(body):
                return None
            found.message = f"{found.message} {body}".strip()
            found.parts += 1
            found.missing = max(found.missing - 1, _missing_lines(body) if found.parts < MOST_PARTS else 0)
            if found.missing:
                return None
        del self._open[line.process]
        if is_head:
            self._open[line.process] = _OpenTraceback(first=number, last=number, rank=line.rank)
        return _failure(found, found.kind, found.message, found.last, line.process)


@lru_cache(maxsize=1024)
def _mark(process: str) -> bytes:
    """A text that every line of a process contains."""
    pid = process.partition(":")[2].partition("@")[0]
    return (f"pid={pid}" if pid else process.removeprefix("rank")).encode()


def _missing_lines(body: str) -> int:
    """How many lines of a message follow its first line."""
    return 2 if CONTINUED_TWICE.search(body) else 1 if CONTINUED.search(body) else 0


def _failure(found: _OpenTraceback, kind: str, message: str, number: int, process: str) -> LoggedFailure:
    return LoggedFailure(
        type=shown(kind, 200),
        message=shown(message, 2000),
        line=number,
        first=found.first,
        process=process,
        rank=found.rank,
        frames=tuple(found.frames),
    )


def innermost(failures: Sequence[LoggedFailure]) -> LoggedFailure | None:
    """The last failure that says more than that there is one, and does not only report another one."""
    telling = (one for one in reversed(failures) if not one.secondary and one.type != UNFINISHED)
    return next(telling, None)
