"""Goes through a log once, in bounded memory, and picks out what may say why a job failed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import BinaryIO

from harness.verdict.triage.catalogue import Catalogue, Signature
from harness.verdict.triage.literal_search import Hit, NeedleFinder
from harness.verdict.triage.log_line import LogLine, parse_line, plain, shown
from harness.verdict.triage.metric_series import MetricSeries
from harness.verdict.triage.stack_trace import HEAD, LoggedFailure, TracebackReader

CHUNK_BYTES = 1 << 18
# Of a longer line, only this much around what was found is looked at.
LINE_BYTES = 1 << 14
BEFORE_BYTES = 1 << 12
# Enough of one kind: the first decides, and counting further would slow down on logs that repeat themselves.
MANY = 1000
TAIL_LINES = 200
TAIL_BYTES = 1 << 16
#: verl prints it with the metrics of every step: what failed before the last one did not end the job.
PROGRESS = "training/global_step"
CRASHES = (
    "Segmentation fault",
    "Fatal Python error",
    "terminate called after throwing",
    "Out of memory: Killed process",
    "(core dumped)",
)


@dataclass(frozen=True, kw_only=True)
class Match:
    """A line that matches a signature. Lines count from 1."""

    signature: Signature
    line: int
    process: str
    rank: int | None
    text: str
    count: int = 1


@dataclass(kw_only=True)
class Scan:
    """What was found in a log, in order of lines.

    progress: the line of the last training step, 0 for none. series: the catalogue's metrics by step.
    tail: the last lines with their numbers.
    """

    matches: list[Match] = field(default_factory=list)
    failures: list[LoggedFailure] = field(default_factory=list)
    lines: int = 0
    size: int = 0
    progress: int = 0
    series: MetricSeries = field(default_factory=MetricSeries)
    tail: tuple[tuple[int, str], ...] = ()
    capped: bool = False


class _Needles:
    """Which needle means what; needles of signatures that were seen often enough are dropped."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._counts: dict[str, int] = {}
        self._wanted: dict[str, list[Signature]] = {}
        for signature in catalogue.signatures:
            for needle in signature.needles:
                self._wanted.setdefault(needle, []).append(signature)
        self._others = [HEAD, PROGRESS, *CRASHES]
        self._build()

    def _build(self) -> None:
        self.texts = [*self._wanted, *(text for text in self._others if text not in self._wanted)]
        self.finder = NeedleFinder([text.encode() for text in self.texts])

    def signatures(self, hits: Iterable[Hit]) -> list[Signature]:
        found = {
            signature.id: signature
            for hit in hits
            for signature in self._wanted.get(self.texts[hit.needle], ())
        }
        return list(found.values())

    def others(self, hits: Iterable[Hit]) -> set[str]:
        return {self.texts[hit.needle] for hit in hits} & set(self._others)

    def enough(self, name: str) -> bool:
        """Count one more of `name`; True when it has been seen often enough."""
        self._counts[name] = self._counts.get(name, 0) + 1
        return self._counts[name] >= MANY

    def drop(self, names: set[str]) -> None:
        """Look no longer for these signatures and texts."""
        self._others = [text for text in self._others if text not in names]
        kept = {
            needle: [signature for signature in found if signature.id not in names]
            for needle, found in self._wanted.items()
        }
        self._wanted = {needle: found for needle, found in kept.items() if found}
        self._build()


def scan(stream: BinaryIO, catalogue: Catalogue) -> Scan:
    """Read the log to its end; no content raises: any encoding, NULs, lines without end."""
    scanner = _Scanner(catalogue)
    carry, again = b"", 0
    while block := stream.read(CHUNK_BYTES):
        scanner.found.size += len(block)
        # UTF-16 as Windows tools write it becomes the ASCII it mostly is.
        data = carry + (block.translate(None, b"\0") if b"\0" in block else block)
        end = data.rfind(b"\n") + 1
        if end:
            scanner.feed(data[:end], again)
            carry, again = data[end:], 0
        elif len(data) < 2 * LINE_BYTES:
            carry = data
        else:
            # An endless line goes on with what was its end, so that nothing is cut in two.
            scanner.feed(data, again)
            carry, again = data[-BEFORE_BYTES:], BEFORE_BYTES
    if carry:
        scanner.feed(carry, again)
    return scanner.finish()


class _Scanner:
    def __init__(self, catalogue: Catalogue) -> None:
        names = tuple(dict.fromkeys(name for one in catalogue.metrics for name in one.metrics))
        self.found = Scan(series=MetricSeries(names=names))
        self._needles = _Needles(catalogue)
        self._tracebacks = TracebackReader()
        self._line = 1
        self._seen: set[tuple[str, int]] = set()
        self._last = b""

    def feed(self, data: bytes, again: int = 0) -> None:
        """A piece of the log that ends with a line end, or is a piece of a line.

        again: how many of its first bytes were in the piece before.
        """
        hits = self._needles.finder.find(data)
        position, index, exhausted = 0, 0, set[str]()
        while index < len(hits) or (self._tracebacks.busy and position < len(data)):
            if not self._tracebacks.busy:
                start = max(data.rfind(b"\n", position, hits[index].position) + 1, position)
                self._line += data.count(b"\n", position, start)
                position = start
            end = data.find(b"\n", position)
            end = len(data) if end < 0 else end
            within = index
            while index < len(hits) and hits[index].position < end:
                index += 1
            exhausted |= self._take(data, position, end, hits[within:index])
            if end == len(data):
                position = end
                break
            position, self._line = end + 1, self._line + 1
        self._line += data.count(b"\n", position)
        self._last = (self._last + data[again:])[-TAIL_BYTES:]
        if exhausted:
            self.found.capped = True
            self._needles.drop(exhausted)

    def _take(self, data: bytes, start: int, end: int, hits: list[Hit]) -> set[str]:
        """One line: its matches and its part in a traceback. Returns what has been seen often enough."""
        exhausted: set[str] = set()
        done = -1
        for hit in hits or [Hit(start, -1)]:
            if hit.position < done:
                continue
            first, last = start, end
            if end - start > LINE_BYTES:
                first = max(start, hit.position - BEFORE_BYTES)
                last = min(end, first + LINE_BYTES)
            done = last
            here = [one for one in hits if first <= one.position < last]
            others = self._needles.others(here)
            signatures = self._needles.signatures(here)
            raw = data[first:last]
            if PROGRESS in others:
                self.found.progress = self._line
                self.found.series.take(raw, self._line)
            if signatures and not self._tracebacks.busy:
                text = plain(raw)
                signatures = [one for one in signatures if one.pattern.search(text)]
            if not signatures and others <= {PROGRESS} and not self._tracebacks.busy:
                continue
            line = parse_line(raw)
            exhausted |= self._match(line, signatures)
            exhausted |= self._crash(line, others - {PROGRESS, HEAD})
            failure = self._tracebacks.feed(self._line, line)
            if failure and len(self.found.failures) < MANY:
                self.found.failures.append(failure)
        if len(self.found.failures) >= MANY and HEAD in self._needles.texts:
            exhausted.add(HEAD)
        return exhausted

    def _match(self, line: LogLine, signatures: list[Signature]) -> set[str]:
        exhausted: set[str] = set()
        for signature in signatures:
            if not signature.pattern.search(line.body):
                continue
            if (signature.id, self._line) in self._seen:
                continue
            self._seen.add((signature.id, self._line))
            self.found.matches.append(
                Match(
                    signature=signature,
                    line=self._line,
                    process=line.process,
                    rank=line.rank,
                    text=shown(line.body),
                    count=1 + line.more,
                )
            )
            if self._needles.enough(signature.id):
                exhausted.add(signature.id)
        return exhausted

    def _crash(self, line: LogLine, texts: set[str]) -> set[str]:
        # The end of an endless line's piece is looked at twice.
        new = {text for text in texts if (text, self._line) not in self._seen}
        self._seen |= {(text, self._line) for text in new}
        for text in new:
            self.found.failures.append(
                LoggedFailure(
                    type=text,
                    message=shown(line.body),
                    line=self._line,
                    first=self._line,
                    process=line.process,
                    rank=line.rank,
                )
            )
        return {text for text in new if self._needles.enough(text)}

    def finish(self) -> Scan:
        """Everything found; call once, after the last piece."""
        self.found.failures.extend(self._tracebacks.finish(self._line))
        self.found.series.finish()
        self.found.lines = self._line - 1 + (not self._last.endswith(b"\n") and bool(self._last))
        ends = self._last.removesuffix(b"\n").split(b"\n")[-TAIL_LINES:]
        first = self.found.lines - len(ends) + 1
        self.found.tail = tuple(
            (first + index, shown(parse_line(raw[-LINE_BYTES:]).body)) for index, raw in enumerate(ends)
        )
        return self.found
