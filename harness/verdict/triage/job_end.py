"""Determines from a log whether its job made progress, finished, was cut off, or stood still."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from harness.verdict.triage.catalogue import Signature
from harness.verdict.triage.log_line import plain, shown

#: Lines with one of these show the end of a job, or how many steps it has.
END_NEEDLES = (
    "Final validation metrics",
    "'train_runtime'",
    "' succeeded",
    " passed, ",
    " passed in ",
    "Successfully installed",
    "g completed",
    "g finished",
    "g complete.",
    "exit code 0",
    "exit code: 0",
    "exited with code 0",
    "Application shutdown complete",
    "otal training steps",
)
#: Lines that only a working job prints: metrics of a step, and throughput or answers of an engine. They are
#: so frequent that only the last one of each part of a log is read.
_PROGRESS = (
    (
        b"training/global_step",
        re.compile(rb"global_step[\"']?[\s:|=\xe2\x94\x82\x83]{1,40}(?:np\.\w{1,12}\(|tensor\()?\d"),
    ),
    (
        b"actor/",
        re.compile(
            rb"actor/\w+[\"']?[\s:|=\xe2\x94\x82\x83]{1,40}(?:np\.\w{1,12}\()?[-+]?(?:\d|\.\d|nan|inf)"
        ),
    ),
    (b"train/loss", re.compile(rb"train/loss[\"']?[\s:|=]{1,40}[-+]?[\d.]")),
    (b"'learning_rate'", re.compile(rb"'learning_rate': ?'?[-+]?[\d.]")),
    (b"elapsed time per iteration", re.compile(rb"iteration .{0,20}: ?\d")),
    (
        b" tokens/s, Running: ",
        re.compile(rb"(?:Running: 0 reqs|throughput: (?!0\.0 )[\d.]+ tokens/s, Running)"),
    ),
    (b'HTTP/1.1" 200', re.compile(rb"200")),
)
_END = re.compile(
    r"Final validation metrics|'train_runtime': |Job '\S{1,100}' succeeded|=+ (?!.{0,100}\b(?:failed|error))"
    r".{0,100}\bpassed\b.{0,80} in \d|^Successfully installed "
    r"|\b[Tt]raining (?:is )?(?:complete[d.]|finished)(?! (?:with|after) err)"
    r"|(?:exit code|exit code:|exited with code) 0\b|Application shutdown complete"
)
_TOTAL = re.compile(r"[Tt]otal training steps\W{1,4}(\d{1,9})\b")
_BAR = re.compile(rb"Training Progress:\s*\d{1,3}%\|[^|\n]{0,200}\| *(\d{1,9})/(\d{1,9}) \[")
_BAR_TEXT = b"Training Progress:"
_TIME = re.compile(rb"(?P<year>\d{4}-)?(?P<day>\d\d-\d\d)(?P<between>[T -])(?P<time>\d\d:\d\d:\d\d)")
_COLLECTIVE = re.compile(
    r"\b(?:OpType=\w+|all_?gather\w*|all_?reduce\w*|reduce_scatter\w*|all_?to_?all\w*|broadcast\w*|barrier|"
    r"Hc(?:cl|om)[A-Z]\w+|hcclComm\w+|init_process_group|update_weights\w*|sync_rollout_weights)\b",
    re.IGNORECASE,
)
#: A job without a step for this long, and for this many times its usual step, stands still.
STILL_SECONDS = 1800
STILL_STEPS = 10
MOST_TIMES = 50
MOST_TRIES = 20
LOOK_BACK = 1 << 12

STANDS_STILL = Signature(
    id="stands-still",
    area="progress",
    stage="train",
    role="symptom",
    evidence="docs",
    pattern=r"(?!)",
    needles=("no step since",),
    example="no step since line 7 (2026-11-20 08:00:00); the log goes on until 2026-11-20 11:00:00",
    cause="the job did not fail, but it made no progress: usually one rank waits in a collective for another",
    remedy=(
        "dump the Python stacks of all ranks (`py-spy dump --pid PID`): the rank that is not in the "
        "collective is the one to look at; check the plog of every rank for its first error"
    ),
    affects="any",
    sources=("verl-project/verl docs/faq/faq.rst",),
)


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A time in a log. form: how it is written; times of different forms are not compared (time zones)."""

    form: str
    seconds: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What a log shows of the end of its job.

    kind: `empty` log; `finished`; `working`, progress until the end of the log; `unfinished`, it stops before
    the last step; `unclear`, after the last progress it has other lines than before, and no end; `unknown`,
    neither progress nor an end; `unread`, the log could not be read to its end. last, total: training steps,
    0 if not stated. line: the first of the other lines.
    """

    kind: Literal["empty", "finished", "working", "unfinished", "unclear", "unread", "unknown"]
    last: int = 0
    total: int = 0
    line: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether a log without a failure shows that its job worked."""
        return self.kind in {"finished", "working"}

    @property
    def sentence(self) -> str:
        """What is known, for a log in which no failure was found; "" if the job worked."""
        if self.kind == "empty":
            return "the log is empty, so nothing is known about the job"
        if self.kind == "unfinished":
            return (
                f"the log stops after step {self.last} of {self.total} without an end: the job was ended "
                "from outside, still runs, or its log was cut"
            )
        if self.kind == "unclear":
            return (
                f"from line {self.line} on the log has text unlike that of the working job, and no "
                "end of the job: read on there, whether the job still works is not known"
            )
        if self.kind == "unread":
            return "the log was not read to its end, so what ended the job is not known"
        if self.kind == "unknown":
            return "the log shows neither progress nor the end of a job, so nothing is known about the job"
        return ""


@dataclass(kw_only=True)
class JobProgress:
    """Collects progress while a log is read. line: of the last progress; end: of the end of the job, or 0."""

    line: int = 0
    end: int = 0
    total: int = 0
    bar: tuple[int, int] = (0, 0)
    _clocks: list[Clock] = field(default_factory=list)
    #: The part with the last progress, its place there, and the number of the first line of the part.
    _progress: tuple[bytes, int, int] | None = None
    _latest: bytes = b""
    _latest_at: int = 0
    _final: list[tuple[int, Clock]] = field(default_factory=list)
    _collective: tuple[int, str] = (0, "")

    def read_line(self, text: str, number: int) -> None:
        """Read a line with one of `END_NEEDLES`."""
        total = _TOTAL.search(text)
        if total:
            self.total = int(total[1])
        if _END.search(text):
            self.end = number

    def read_part(self, data: bytes, line: int) -> None:
        """Read a part of the log whose first line has this number."""
        found = (_last_progress(data, text, pattern) for text, pattern in _PROGRESS)
        at = next((position for position in found if position >= 0), -1)
        if at >= 0:
            self._progress = (data, at, line)
            self._latest = data[max(0, at - LOOK_BACK) : at + LOOK_BACK]
            self._latest_at = min(at, LOOK_BACK)
            if len(self._clocks) < MOST_TIMES:
                clock = last_clock(self._latest[: self._latest_at])
                self._clocks += [clock] if clock else []

    def read_end(self, tail: bytes, lines: Sequence[tuple[int, bytes]]) -> None:
        """Read the last part of the log, and its last lines with their numbers."""
        if self._progress:
            data, at, line = self._progress
            self.line = line + data.count(b"\n", 0, at)
        for number, raw in lines:
            clock = last_clock(raw[:400])
            collective = _COLLECTIVE.search(plain(raw[:2000]))
            self._final += [(number, clock)] if clock else []
            self._collective = (number, shown(collective[0], 60)) if collective else self._collective
        bar = _BAR.match(tail, max(0, tail.rfind(_BAR_TEXT)))
        if bar:
            self.bar = (int(bar[1]), int(bar[2]))

    @property
    def cutoff(self) -> int:
        """What was reported before this line did not end the job."""
        return max(self.line, self.end)

    def ending(self, *, is_empty: bool, last_step: int) -> Ending:
        """What the log shows of the end of its job. last_step: the last training step, 0 if there is none."""
        if is_empty:
            return Ending(kind="empty")
        total = self.total
        if not total and self.bar[0] and abs(self.bar[0] - last_step) <= 1:
            total = self.bar[1]
        if last_step and total and last_step < total and self.end < self.line:
            return Ending(kind="unfinished", last=last_step, total=total)
        if self.end or (self.bar[1] and self.bar[0] == self.bar[1]):
            return Ending(kind="finished", last=last_step, total=total)
        return Ending(kind="working" if self.line or last_step else "unknown", last=last_step, total=total)

    def standstill(self) -> tuple[int, str] | None:
        """(line, sentence) if the clock of the last lines goes on without progress; else None."""
        if self.end > self.line or not self._final:
            return None
        since, start = self._start()
        final = self._final[-1][1]
        if start is None or start.form != final.form:
            return None
        waited = final.seconds - start.seconds
        if waited < max(STILL_SECONDS, STILL_STEPS * self._usual()):
            return None
        number, collective = self._collective
        place = f"; last collective: {collective} (line {number})" if collective else ""
        what = "step" if self.line else "progress"
        return (
            since,
            f"no {what} since line {since} ({start.text}); the log goes on until {final.text}{place}",
        )

    def _start(self) -> tuple[int, Clock | None]:
        """Where the job last worked: the last progress, or the beginning of the largest gap between lines."""
        if self.line:
            return self.line, self._clock_of_progress()
        gaps = [
            (following.seconds - clock.seconds, number, clock)
            for (number, clock), (_, following) in zip(self._final, self._final[1:], strict=False)
            if clock.form == following.form
        ]
        if not gaps:
            return 0, None
        _, number, clock = max(gaps, key=lambda gap: gap[0])
        largest = max(gap[0] for gap in gaps)
        return (number, clock) if largest >= STILL_SECONDS else (0, None)

    def _clock_of_progress(self) -> Clock | None:
        """The time of the last progress: the last one before the end of its line."""
        end = self._latest.find(b"\n", self._latest_at)
        return last_clock(self._latest[: end if end >= 0 else len(self._latest)])

    def _usual(self) -> float:
        """An upper limit of the usual time between two steps in seconds, 0 if unknown."""
        steps = [
            later.seconds - earlier.seconds
            for earlier, later in zip(self._clocks, self._clocks[1:], strict=False)
            if earlier.form == later.form
        ]
        return statistics.median(steps) if steps else 0.0


def _last_progress(data: bytes, text: bytes, pattern: re.Pattern[bytes]) -> int:
    """Where the last valid occurrence of `text` is, or -1."""
    at = data.rfind(text)
    for _ in range(MOST_TRIES):
        if at < 0:
            break
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        if pattern.search(data, max(start, at - 400), min(len(data) if end < 0 else end, at + 400)):
            return at
        at = data.rfind(text, 0, at)
    return -1


def last_clock(text: bytes) -> Clock | None:
    """The last time in a text, or None."""
    found = next(reversed(list(_TIME.finditer(text))), None)
    if found is None:
        return None
    parts = {name: (value or b"").decode() for name, value in found.groupdict().items()}
    try:
        # The time zone of a log is unknown, but only differences are used.
        seconds = datetime.fromisoformat(
            f"{parts['year'] or '2024-'}{parts['day']}T{parts['time']}+00:00"
        ).timestamp()
    except ValueError:
        return None
    form = f"{'year' if parts['year'] else ''}{parts['between']}"
    return Clock(form=form, seconds=seconds, text=found[0].decode())
