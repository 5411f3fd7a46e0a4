"""Reads a log once, with bounded memory, and collects signature matches, tracebacks, crashes and metrics."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, BinaryIO

from harness.verdict.triage.catalogue import Catalogue, SettingCause, Signature, matching
from harness.verdict.triage.citations import (
    BEGINNINGS,
    LONGEST,
    Citations,
    follows_ignored,
    follows_warning,
    in_quoted_field,
    may_cite,
)
from harness.verdict.triage.code_tables import NEEDLES as CODE_NEEDLES
from harness.verdict.triage.code_tables import CodePlaces, explain_codes, places_of
from harness.verdict.triage.derived.logged_versions import NEEDLES as VERSION_NEEDLES
from harness.verdict.triage.derived.logged_versions import LoggedVersions
from harness.verdict.triage.error_lines import NEEDLES, error_of
from harness.verdict.triage.job_end import END_NEEDLES, JobProgress
from harness.verdict.triage.log_archive import LogContent, log_contents
from harness.verdict.triage.log_blocks import log_blocks
from harness.verdict.triage.log_line import LogLine, parse_line, plain, shown
from harness.verdict.triage.metric_series import MetricSeries, StepLine
from harness.verdict.triage.stack_trace import (
    FRAME_NEEDLE,
    HEAD,
    MOST_UNFINISHED,
    LoggedFailure,
    TracebackReader,
)

if TYPE_CHECKING:
    from harness.verdict.triage.literal_search import Hit

# Of a longer line, only this many bytes around an occurrence are examined.
LINE_BYTES = 1 << 14
BEFORE_BYTES = 1 << 12
# After this many occurrences of a signature it is no longer searched, which would be slow on repetitive logs,
# except in the last parts of the log.
MANY = 200
#: So many lines with a frame that belong to no traceback count as one occurrence.
FRAMES_FOR_ONE = 20
#: How many parts at the end of a log are searched for everything.
LAST_PARTS = 2
TAIL_LINES = 200
TAIL_BYTES = 1 << 16
#: verl prints this with the metrics of every step.
STEP = "training/global_step"
PROGRESS = frozenset({STEP, *END_NEEDLES})
#: Codes of failed tasks are no mere warnings, although torch_npu reports them as warnings in destructors.
GRAVE = ("acl-5", "acl-2", "cann-")
#: A log with one of these is of a job that uses NPUs.
NPU_WORDS = (
    b"torch_npu",
    b"NPU",
    b"Ascend9",
    b"Ascend3",
    b"/Ascend",
    b"ascend_",
    b"_ascend",
    b"hccl",
    b"HCCL",
    b"triton-ascend",
)
WARNINGS = frozenset({"WARN", "WARNING"})
CRASHES = ("Fatal Python error",)
VERSIONS = frozenset(VERSION_NEEDLES)


@dataclass(frozen=True, kw_only=True)
class Match:
    """A line that matches a signature. `line` counts from 1.

    mild: the program that wrote it did not consider it an error. places: the device and remote rank on it.
    """

    signature: Signature
    line: int
    process: str
    rank: int | None
    text: str
    count: int = 1
    mild: bool = False
    places: CodePlaces = field(default_factory=CodePlaces)


@dataclass(frozen=True, kw_only=True)
class SeenSetting:
    """A setting that a line shows to be on or off."""

    is_on: bool
    line: int


@dataclass(kw_only=True)
class Scan:
    """The findings in a log, in order of lines.

    job: the progress of the job. series: the metrics of the catalogue by step. tail: the last lines with
    their numbers, without those that their programs did not consider errors. last_warning: the very last
    line, if it is a warning. capped: a match occurred `MANY`
    times, and further occurrences were not counted.
    is_empty: whether the log has only blanks. settings: id of a setting -> where the log shows it first.
    versions: the versions of packages that the log shows. has_npu: whether it is of a job that uses NPUs.
    problems: what was not read of it.
    """

    matches: list[Match] = field(default_factory=list)
    failures: list[LoggedFailure] = field(default_factory=list)
    lines: int = 0
    size: int = 0
    is_empty: bool = True
    job: JobProgress = field(default_factory=JobProgress)
    series: MetricSeries = field(default_factory=MetricSeries)
    settings: dict[str, SeenSetting] = field(default_factory=dict)
    versions: LoggedVersions = field(default_factory=LoggedVersions)
    tail: tuple[tuple[int, str], ...] = ()
    last_warning: tuple[int, str] | None = None
    has_npu: bool = False
    problems: tuple[str, ...] = ()
    capped: bool = False

    @property
    def progress(self) -> int:
        """What was reported before this line did not end the job; 0 if it shows no progress."""
        return 0 if self.series.is_reversed else self.job.cutoff


class _Needles:
    """The needles to search for, and the signatures that they belong to."""

    def __init__(self, catalogue: Catalogue, most: float = MANY) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._signatures: dict[str, list[Signature]] = {}
        for signature in catalogue.signatures:
            for needle in signature.needles:
                self._signatures.setdefault(needle, []).append(signature)
        self._settings = [needle for setting in catalogue.settings for needle in setting.needles]
        self._others = [
            HEAD,
            FRAME_NEEDLE,
            *self._settings,
            *sorted(PROGRESS),
            *NEEDLES,
            *CODE_NEEDLES,
            *CRASHES,
            *VERSION_NEEDLES,
        ]
        self._build()

    def _build(self) -> None:
        self.texts = [*self._signatures, *(text for text in self._others if text not in self._signatures)]
        # Importing numpy takes 0.1 s, which commands that scan no log should not spend.
        from harness.verdict.triage.literal_search import NeedleFinder

        self.finder = NeedleFinder([text.encode() for text in self.texts])

    def signatures(self, hits: Iterable[Hit]) -> list[Signature]:
        """The signatures whose needles were found, each once."""
        found = {
            signature.id: signature
            for hit in hits
            for signature in self._signatures.get(self.texts[hit.needle], ())
        }
        return list(found.values())

    def others(self, hits: Iterable[Hit]) -> set[str]:
        """The texts among `hits` that are searched for besides those of signatures."""
        return {self.texts[hit.needle] for hit in hits} & set(self._others)

    def is_exhausted(self, name: str) -> bool:
        """Count an occurrence of `name`; returns whether it has occurred so often that it suffices."""
        self._counts[name] += 1
        return self._counts[name] >= self._most

    def drop(self, names: set[str]) -> None:
        """Stop searching for these signatures and texts."""
        self._others = [text for text in self._others if text not in names]
        for needle, signatures in list(self._signatures.items()):
            self._signatures[needle] = [signature for signature in signatures if signature.id not in names]
            if not self._signatures[needle]:
                del self._signatures[needle]
        self._build()


def scans(stream: BinaryIO, catalogue: Catalogue) -> Iterator[tuple[str, Scan]]:
    """Each log of an archive by its name there; "" for a log that is none."""
    for content in log_contents(stream):
        yield content.name, _scan_content(content, catalogue)


def scan(stream: BinaryIO, catalogue: Catalogue) -> Scan:
    """Read the log, or the first one of an archive, to its end."""
    return next((found for _name, found in scans(stream, catalogue)), Scan())


def _scan_content(content: LogContent, catalogue: Catalogue) -> Scan:
    """Read a log to its end. Any content is accepted: any encoding, NULs, very long lines."""
    scanner = _Scanner(catalogue)
    rest, repeated = b"", 0
    blocks = log_blocks(content.blocks)
    block = next(blocks, b"")
    while block:
        following = next(blocks, b"")
        scanner.found.size += len(block)
        data = rest + _without_nuls(block)
        end = data.rfind(b"\n") + 1
        if end:
            rest = data[end:]
            scanner.ahead = rest + _without_nuls(following[:LONGEST])
            scanner.feed(data[:end], repeated)
            repeated = 0
        elif len(data) < 2 * LINE_BYTES:
            rest = data
        else:
            # Parts of a very long line overlap, so that no match is cut in two.
            scanner.feed(data, repeated)
            rest, repeated = data[-BEFORE_BYTES:], BEFORE_BYTES
        block = following
    scanner.ahead = b""
    if rest:
        scanner.feed(rest, repeated)
    found = scanner.finish()
    found.problems = tuple(content.problems)
    return found


def _without_nuls(block: bytes) -> bytes:
    """Without NULs, UTF-16 of Windows tools is mostly ASCII."""
    return block.translate(None, b"\0") if b"\0" in block else block


@dataclass(frozen=True, kw_only=True)
class _Crash:
    """Whether a line has the text of a crash, and which of these texts are exhausted."""

    seen: bool
    exhausted: set[str]


class _Scanner:
    def __init__(self, catalogue: Catalogue, most: float = MANY) -> None:
        self._catalogue, self._most = catalogue, most
        names = tuple(dict.fromkeys(name for one in catalogue.metrics for name in one.metrics))
        self.found = Scan(series=MetricSeries(names=names))
        #: The beginning of what follows the data that is scanned.
        self.ahead = b""
        self._needles = _Needles(catalogue, most)
        self._settings = {needle: setting for setting in catalogue.settings for needle in setting.needles}
        self._tracebacks = TracebackReader(MOST_UNFINISHED if most <= MANY else most)
        #: How many lines with a frame belonged to no traceback, as in the stacks that faulthandler prints.
        self._stray_frames = 0
        self._line = 1
        self._may_cite = False
        self._citations: Citations | None = None
        self._recent: deque[tuple[bytes, int]] = deque(maxlen=LAST_PARTS)
        self._dropped: set[str] = set()
        self._seen: set[tuple[str, int]] = set()
        self._last = b""
        #: The first and last lines of tracebacks of exceptions that Python ignored, in destructors, and the
        #: lines before that say so.
        self._ignored: set[int] = set()

    def feed(self, data: bytes, repeated: int = 0) -> None:
        """Scan whole lines, or a part of a line; `repeated` bytes at its start were already scanned."""
        self.found.job.read_part(data, self._line)
        self._may_cite, self._citations = may_cite(data) or may_cite(self._last[-LONGEST:]), None
        self._recent.append((data, self._line))
        self.found.is_empty &= not data or data.isspace()
        self.found.has_npu = self.found.has_npu or any(word in data for word in NPU_WORDS)
        hits = self._needles.finder.find(data)
        if not any(self._needles.texts[hit.needle] == STEP for hit in hits):
            self.found.series.read_other_forms(data, self._line)
        position, index, exhausted = 0, 0, set[str]()
        while index < len(hits) or (self._is_busy and position < len(data)):
            if not self._is_busy:
                if self._passes_over(data, hits, index, position):
                    index += 1
                    continue
                start = max(data.rfind(b"\n", position, hits[index].position) + 1, position)
                self._line += data.count(b"\n", position, start)
                position = start
            end = data.find(b"\n", position)
            end = len(data) if end < 0 else end
            first_hit = index
            while index < len(hits) and hits[index].position < end:
                index += 1
            if index > first_hit or self._matters(data, position, end):
                exhausted |= self._scan_line(data, position, end, hits[first_hit:index])
            if end == len(data):
                position = end
                break
            position, self._line = end + 1, self._line + 1
        self._line += data.count(b"\n", position)
        self._last = (self._last + data[repeated:])[-TAIL_BYTES:]
        if exhausted:
            self.found.capped |= not exhausted <= VERSIONS
            self._dropped |= exhausted
            self._needles.drop(exhausted)

    @property
    def _is_busy(self) -> bool:
        """Whether the next line matters even if it has no needle."""
        return self._tracebacks.busy or self.found.versions.busy

    def _matters(self, data: bytes, start: int, end: int) -> bool:
        """Whether a line without a needle matters while `_is_busy`."""
        return self.found.versions.busy or self._tracebacks.may_own(data, start, end)

    def _passes_over(self, data: bytes, hits: list[Hit], index: int, position: int) -> bool:
        """Whether a line has only the number of a step that is not needed. Most lines with a needle are such.

        position: where the line `_line` begins, which may be before that of the hit.
        """
        at = hits[index].position
        if self._needles.texts[hits[index].needle] != STEP:
            return False
        start = max(position, data.rfind(b"\n", max(position, at - LINE_BYTES // 2), at) + 1)
        end = data.find(b"\n", at, at + LINE_BYTES // 2)
        if (
            end < 0
            or at - start >= LINE_BYTES // 2
            or (index + 1 < len(hits) and hits[index + 1].position < end)
        ):
            return False
        return self.found.series.passes_over(StepLine(data, start, end, at, position, self._line))

    def _scan_line(self, data: bytes, start: int, end: int, hits: list[Hit]) -> set[str]:
        """Scan one line for matches and parts of tracebacks; returns exhausted signatures and texts."""
        exhausted: set[str] = set()
        scanned = -1
        for position in [hit.position for hit in hits] or [start]:
            if position < scanned:
                continue
            first, last = start, end
            if end - start > LINE_BYTES:
                first = max(start, position - BEFORE_BYTES)
                last = min(end, first + LINE_BYTES)
            scanned = last
            # A needle may begin with the end of the line before.
            inside = hits
            if last < end or first > start:
                inside = hits[bisect_left(hits, (first - 1, 0)) : bisect_left(hits, (last, 0))]
            exhausted |= self._scan_part(data, first, last, inside)
        if len(self.found.failures) >= self._most and HEAD in self._needles.texts:
            exhausted |= {HEAD, FRAME_NEEDLE, *NEEDLES, *CODE_NEEDLES}
        if self._tracebacks.has_many_unfinished and HEAD in self._needles.texts:
            exhausted |= {HEAD, FRAME_NEEDLE}
        if self._stray_frames >= FRAMES_FOR_ONE * self._most and FRAME_NEEDLE in self._needles.texts:
            exhausted.add(FRAME_NEEDLE)
        return exhausted

    def _scan_part(self, data: bytes, first: int, last: int, hits: list[Hit]) -> set[str]:
        """Scan a line, or a part of a long one."""
        others, signatures = self._needles.others(hits), self._needles.signatures(hits)
        raw = data[first:last]
        exhausted = self._read_versions(raw, others & VERSIONS)
        others = others - VERSIONS
        progress = others & PROGRESS
        if others & self._settings.keys():
            self._read_settings(plain(raw), {self._settings[text] for text in others & self._settings.keys()})
            others = others - self._settings.keys()
        ends = progress - {STEP}
        text = plain(raw) if ends or (signatures and not self._tracebacks.busy) else ""
        if STEP in progress:
            self.found.series.read_block(data, first, last, self._line)
        if ends:
            self.found.job.read_line(text, self._line)
        if signatures and not self._tracebacks.busy:
            signatures = [signature for signature in signatures if signature.regex.search(text)]
        if not signatures and others <= PROGRESS and not self._tracebacks.busy:
            return exhausted
        line = parse_line(raw)
        if (signatures or others - PROGRESS) and self._is_cited(data, hits[0].position, last, line):
            return exhausted
        if HEAD in others and follows_ignored(data, first):
            self._ignored |= {self._line - 1, self._line}
        if signatures and follows_warning(data, first):
            line = replace(line, level="WARNING")
        lines = (line, *(replace(line, body=text) for text in line.rest))
        told = next((one for one in lines if matching(signatures, one.body)), line)
        known = matching(signatures, told.body)
        if not known and others & set(CODE_NEEDLES):
            known = tuple(explain_codes(line.body))[:1]
        matched = self._match(told, known)
        crashed = self._crash(line, others & set(CRASHES))
        was_open = self._tracebacks.is_open(line.process)
        failure = self._tracebacks.feed(self._line, line)
        self._stray_frames += FRAME_NEEDLE in others and not self._tracebacks.is_open(line.process)
        for text in line.rest:
            failure = self._tracebacks.feed(self._line, replace(line, body=text)) or failure
        if failure is None and not was_open and others & set(NEEDLES) and not crashed.seen:
            failure = error_of(self._line, line)
            if failure and self._tracebacks.go_on(failure):
                failure = None
        if failure and failure.first in self._ignored:
            self._ignored.add(failure.line)
            failure = None
        if failure and len(self.found.failures) < self._most:
            self.found.failures.append(failure)
        return exhausted | matched | crashed.exhausted

    def _read_versions(self, raw: bytes, needles: set[str]) -> set[str]:
        """Read the versions on a line; returns the needles that have occurred so often that they suffice."""
        if needles or self.found.versions.busy:
            self.found.versions.read(parse_line(raw).body, self._line)
        return {needle for needle in needles if self._needles.is_exhausted(needle)}

    def _read_settings(self, text: str, settings: set[SettingCause]) -> None:
        for setting in settings:
            if setting.id in self.found.settings:
                continue
            on, off = setting.patterns
            if on.search(text) or off.search(text):
                self.found.settings[setting.id] = SeenSetting(is_on=bool(on.search(text)), line=self._line)

    def _is_cited(self, data: bytes, position: int, end: int, line: LogLine) -> bool:
        if not self._may_cite:
            return False
        if self._citations is None:
            self._citations = Citations(self._last, data, self.ahead)
        return self._citations.contain(position, end, line.process)

    def _match(self, line: LogLine, signatures: Sequence[Signature]) -> set[str]:
        exhausted: set[str] = set()
        for signature in signatures:
            if (signature.id, self._line) in self._seen or in_quoted_field(line.body, signature.regex):
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
                    mild=line.is_mild
                    and signature.severity == "error"
                    and not signature.id.startswith(GRAVE),
                    places=places_of(line.body),
                )
            )
            if self._needles.is_exhausted(signature.id):
                exhausted.add(signature.id)
        return exhausted

    def _crash(self, line: LogLine, texts: set[str]) -> _Crash:
        # The overlap between the parts of a very long line is scanned twice.
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
        return _Crash(seen=bool(texts), exhausted={text for text in new if self._needles.is_exhausted(text)})

    def _search_end(self) -> None:
        """Search the last parts again for what was no longer searched: there is what ended the job."""
        late = _Scanner(self._catalogue, most=math.inf)
        last_failure = max((failure.line for failure in self.found.failures), default=0)
        for data, line in self._recent:
            late._line = line
            late.feed(data)
        late.found.failures.extend(late._tracebacks.finish())
        self.found.matches += [
            match
            for match in late.found.matches
            if match.signature.id in self._dropped and (match.signature.id, match.line) not in self._seen
        ]
        self.found.matches.sort(key=lambda match: match.line)
        self.found.failures += [failure for failure in late.found.failures if failure.line > last_failure]

    def finish(self) -> Scan:
        """All findings. Call this once, after the last part of the log."""
        self.found.failures.extend(self._tracebacks.finish())
        if self._dropped - VERSIONS:
            self._search_end()
        self.found.failures.sort(key=lambda failure: failure.line)
        self.found.series.finish()
        self.found.lines = self._line - 1 + (not self._last.endswith(b"\n") and bool(self._last))
        ends = self._last.removesuffix(b"\n").split(b"\n")[-TAIL_LINES:]
        first = self.found.lines - len(ends) + 1
        self.found.job.read_end(self._last, [(first + index, raw) for index, raw in enumerate(ends)])
        shown_last = list(_not_cited(self._last, ends))
        tail = [
            (first + index, line)
            for index, line in shown_last
            if not line.is_mild and first + index not in self._ignored
        ]
        written = [(first + index, line) for index, line in shown_last if line.body.strip()]
        if written and written[-1][1].level in WARNINGS:
            self.found.last_warning = written[-1][0], shown(written[-1][1].body)
        if not self.found.failures and not self.found.matches:
            failures = (error_of(number, line) for number, line in tail)
            self.found.failures.extend(failure for failure in failures if failure)
        self.found.tail = tuple((number, shown(line.body)) for number, line in tail)
        return self.found


def _not_cited(last: bytes, lines: Sequence[bytes]) -> Iterator[tuple[int, LogLine]]:
    """The last lines of a log that are in no citation, with their index. last: the end of the log."""
    citations = Citations(b"", last, b"")
    position = len(last.removesuffix(b"\n")) - sum(len(raw) + 1 for raw in lines) + 1
    for index, raw in enumerate(lines):
        line = parse_line(raw[-LINE_BYTES:])
        begins = any(mark in raw for mark in BEGINNINGS)
        if not citations.contain(position + len(raw) * begins, position + len(raw), line.process):
            yield index, line
        position += len(raw) + 1
