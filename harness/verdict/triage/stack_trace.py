"""Python tracebacks read out of logs: Ray's wrapping removed, processes kept apart, stacks normalised."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.digest import digest_json
from harness.verdict.triage.log_line import LogLine, shown

HEAD = "Traceback (most recent call last)"
FRAME = re.compile(
    r'\s*File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,200}))?'
)
EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200}(?:\([\w.]{1,200}\))?)(?:: (?P<message>.*))?$")
# `ray.exceptions.RayTaskError(ValueError): ray::Worker.run() (pid=1, ip=...)`: the worker's stack follows.
RAY_WRAPPER = re.compile(
    r"(?:ray\.exceptions\.)?(?:RayTaskError|ActorDiedError|RayActorError)\b|.{0,300}\bray::\S{1,200} \(pid="
)
MOST_LINES = 400
CLUSTER_FRAMES = 6

#: Exceptions that only say that another process or program failed.
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
    }
)
# Frames of the machinery that carries a call, which say nothing about the failure.
MACHINERY = re.compile(
    r"(?:^|/)(?:ray/_private|ray/util/tracing|ray/dashboard|hydra/_internal|hydra/main|concurrent/futures|asyncio|"
    r"threading|multiprocessing|runpy|importlib|torch/utils/_contextlib|torch/nn/modules/module|"
    r"verl/single_controller|tensordict/_contextlib|contextlib|functools)\b|^<frozen "
)
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{12,}\b|\d+(?:\.\d+)?")
PATHS = re.compile(r"(?:/[\w.@+-]+){2,}")


@dataclass(frozen=True)
class Frame:
    """A place in a stack."""

    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """The file from its package on, and the function: the same on every host, whatever the line."""
        file = re.split(r"/(?:site|dist)-packages/|/python3\.\d+/", self.file)[-1]
        return f"{'/'.join(file.split('/')[-4:])}:{self.function}"


@dataclass(frozen=True, kw_only=True)
class LoggedFailure:
    """An exception, or a crash, in a log; `first` is where its stack begins, `line` where it ends."""

    type: str
    message: str
    line: int
    first: int
    process: str
    rank: int | None
    frames: tuple[Frame, ...] = ()

    @property
    def secondary(self) -> bool:
        """Whether it only reports that something else failed."""
        return self.type.rpartition(".")[2].partition("(")[0] in SECONDARY_TYPES

    @property
    def text(self) -> str:
        """Type and message as Python prints them."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def stack(self) -> tuple[str, ...]:
        """The innermost frames that are not machinery, outermost first."""
        places = [frame.place for frame in self.frames if not MACHINERY.search(frame.place)]
        return tuple(places[-CLUSTER_FRAMES:])

    @property
    def cluster(self) -> str:
        """Equal for failures of one type at one place with the same message up to numbers and paths."""
        name = self.type.rpartition(".")[2]
        return digest_json([name, normalised(self.message), list(self.stack)])[:12]


def normalised(message: str) -> str:
    """A message without what differs from run to run: addresses, numbers, folders."""
    return NUMBERS.sub("N", PATHS.sub(lambda path: path[0].rpartition("/")[2], message))[:SHORTENED]


SHORTENED = 500


@dataclass
class _OpenTraceback:
    first: int
    rank: int | None
    seen: int = 0
    frames: list[Frame] = field(default_factory=list)
    wrapped: str = ""


class TracebackReader:
    """Reads lines in order; each process has at most one unfinished traceback."""

    def __init__(self) -> None:
        self._open: dict[str, _OpenTraceback] = {}

    @property
    def busy(self) -> bool:
        """Whether the next lines may belong to a traceback that has begun."""
        return bool(self._open)

    def feed(self, number: int, line: LogLine) -> LoggedFailure | None:
        """The failure that ends with this line, or None."""
        for process in [name for name, found in self._open.items() if found.seen >= MOST_LINES]:
            del self._open[process]
        for found in self._open.values():
            found.seen += 1
        if HEAD in line.body:
            self._open[line.process] = _OpenTraceback(first=number, rank=line.rank)
            return None
        found_here = self._open.get(line.process)
        return self._continue(found_here, number, line) if found_here else None

    def finish(self, number: int) -> list[LoggedFailure]:
        """What was open when the log ended, as failures without a message."""
        left = [
            _failure(found, found.wrapped or "unfinished traceback", "", number, process)
            for process, found in self._open.items()
            if found.frames or found.wrapped
        ]
        self._open.clear()
        return left

    def _continue(self, found: _OpenTraceback, number: int, line: LogLine) -> LoggedFailure | None:
        body = line.body
        frame = FRAME.match(body)
        if frame:
            found.frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or ""))
            return None
        if not body.strip() or body[0] in " \t":
            return None
        if RAY_WRAPPER.match(body):
            found.wrapped = body
            found.frames.clear()
            return None
        exception = EXCEPTION.match(body)
        if not exception:
            return None
        del self._open[line.process]
        found.rank = found.rank if found.rank is not None else line.rank
        return _failure(found, exception["type"], exception["message"] or "", number, line.process)


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
    """The last failure that is not merely a report of another one."""
    return next((failure for failure in reversed(failures) if not failure.secondary), None)
