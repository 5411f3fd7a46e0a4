"""From what a log holds to why the job failed: the cause before its consequences, or that it is not known."""

from __future__ import annotations

import io
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from harness.errors import InputError, Location
from harness.verdict.triage.catalogue import Catalogue, Signature, shipped_catalogue
from harness.verdict.triage.log_scan import Match, Scan, scan
from harness.verdict.triage.metric_series import MetricSeries
from harness.verdict.triage.metric_triage import metric_matches
from harness.verdict.triage.stack_trace import LoggedFailure, innermost

SCHEMA = {"name": "npu-matrix.triage", "version": 1}
# What is taken for an error where no signature and no exception was found.
SUSPICIOUS = re.compile(
    r"(?:^|\s)(?:error|fatal|panic)\b[^:]{0,40}:|^\w+(?:Error|Exception)\b"
    r"|\b(?:cannot find|command not found|permission denied|no space left|killed|aborted)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One failure of a log, however many ranks show it.

    signature: None for a failure nobody has described yet. count: over all ranks and repetitions. survived:
    training went on after it.
    """

    signature: Signature | None
    text: str
    line: int
    process: str
    ranks: tuple[int, ...]
    processes: tuple[str, ...]
    count: int
    survived: bool
    failure: LoggedFailure | None = None

    @property
    def id(self) -> str:
        """The signature's id, or `unknown-` and the digest of the normalised stack."""
        if self.signature:
            return self.signature.id
        return f"unknown-{self.failure.cluster}" if self.failure else "unknown"

    @property
    def order(self) -> tuple[bool, int, int]:
        """What ended the job first; causes, then symptoms, then warnings; the first line first."""
        return (self.survived, self._weight, self.line)

    @property
    def _weight(self) -> int:
        if self.signature is None:
            return 1 if self.failure is None or self.failure.secondary else 0
        if self.signature.severity != "error":
            return 2 if self.signature.severity == "warning" else 3
        return 1 if self.signature.role == "symptom" else 0

    def to_json(self) -> dict[str, Any]:
        """As JSON; `rank` is the first rank that shows it, null where the log does not say."""
        known = self.signature
        return {
            "id": self.id,
            "known": known is not None,
            "line": self.line,
            "rank": self.ranks[0] if self.ranks else None,
            "ranks": list(self.ranks),
            "process": self.process,
            "processes": len(self.processes),
            "count": self.count,
            "survived": self.survived,
            "text": self.text,
            "severity": known.severity if known else "error",
            "role": known.role if known else "symptom" if self._weight else "cause",
            "area": known.area if known else "",
            "cause": known.cause if known else "",
            "remedy": known.remedy if known else "",
            "affects": known.affects if known else "",
            "sources": list(known.sources) if known else [],
            "stack": list(self.failure.stack) if self.failure else [],
        }


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why a job failed, as far as its log tells; `findings` are ranked."""

    findings: tuple[Finding, ...]
    lines: int
    size: int
    notes: tuple[str, ...] = ()

    @property
    def root(self) -> Finding | None:
        """What most likely ended the job; None when nothing was found."""
        return next((finding for finding in self.findings if not finding.survived), None)

    @property
    def known(self) -> bool:
        """Whether the catalogue describes the root cause: a symptom or a warning explains nothing."""
        root = self.root
        return bool(
            root and root.signature and root.signature.role == "cause" and root.signature.severity == "error"
        )

    def to_json(self) -> dict[str, Any]:
        """Schema `npu-matrix.triage`."""
        return {
            "schema": SCHEMA,
            "known": self.known,
            "root": self.root.to_json() if self.root else None,
            "matches": [finding.to_json() for finding in self.findings],
            "lines": self.lines,
            "bytes": self.size,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class ComparedRuns:
    """Runs whose metrics are compared with the log: a correct run, and a second run of the same cell."""

    reference: MetricSeries | None = None
    repeat: MetricSeries | None = None


def triage_text(
    log: bytes, catalogue: Catalogue | None = None, *, beside: ComparedRuns | None = None
) -> Diagnosis:
    """The diagnosis of a log in memory."""
    return triage(io.BytesIO(log), catalogue or shipped_catalogue(), beside=beside)


def triage_file(
    path: Path, catalogue: Catalogue | None = None, *, beside: ComparedRuns | None = None
) -> Diagnosis:
    """The diagnosis of a log file of any size; InputError when it cannot be read."""
    used = catalogue or shipped_catalogue()
    return diagnose(_scan_file(path, used), used, beside=beside)


def read_series(path: Path, catalogue: Catalogue | None = None) -> MetricSeries:
    """The metrics by step in a log; InputError when it cannot be read or holds no training step."""
    series = _scan_file(path, catalogue or shipped_catalogue()).series
    if not series.values:
        raise InputError(
            "no training step with a known metric is in this log",
            where=Location(path),
            fix="pass verl's console log, or the file that its `file` logger wrote",
        )
    return series


def _scan_file(path: Path, catalogue: Catalogue) -> Scan:
    try:
        with path.open("rb") as stream:
            return scan(stream, catalogue)
    except OSError as error:
        raise InputError(
            "this log cannot be read",
            where=Location(path),
            why=error.strerror or str(error),
            fix="name a log file",
        ) from error


def triage(stream: BinaryIO, catalogue: Catalogue, *, beside: ComparedRuns | None = None) -> Diagnosis:
    """The diagnosis of a log that is read once, in bounded memory."""
    return diagnose(scan(stream, catalogue), catalogue, beside=beside)


def diagnose(found: Scan, catalogue: Catalogue, *, beside: ComparedRuns | None = None) -> Diagnosis:
    """Group by failure, drop what wraps another, and rank; what only metrics show comes last."""
    explained = _explained(found)
    groups: dict[str, list[Finding]] = {}
    for match in found.matches:
        one = _of_match(match, found)
        groups.setdefault(one.id, []).append(one)
    for failure in found.failures:
        if explained[id(failure)] is None:
            one = _of_failure(failure, found)
            groups.setdefault(one.id, []).append(one)
    last = innermost([failure for failure in found.failures if failure.line > found.progress])
    carried = _name(last, explained) if last else ""
    findings = sorted(
        (_merged(group) for group in groups.values()),
        # Of several causes, the one the last process died of was carried to the end of the job.
        key=lambda finding: (*finding.order[:2], finding.id != carried, finding.line),
    )
    findings += _of_metrics(found, catalogue, beside or ComparedRuns())
    if not findings:
        findings = _suspicious(found)
    return Diagnosis(
        findings=tuple(findings), lines=found.lines, size=found.size, notes=_notes(found, findings)
    )


def _explained(found: Scan) -> dict[int, Match | None]:
    """id() of each failure -> the match within its stack, if there is one."""
    by_process: dict[str, list[Match]] = {}
    for match in found.matches:
        by_process.setdefault(match.process, []).append(match)
    explained: dict[int, Match | None] = {}
    for failure in found.failures:
        matches = by_process.get(failure.process, [])
        index = bisect_left(matches, failure.first, key=lambda match: match.line)
        inside = index < len(matches) and matches[index].line <= failure.line
        explained[id(failure)] = matches[index] if inside else None
    return explained


def _name(failure: LoggedFailure, explained: Mapping[int, Match | None]) -> str:
    match = explained.get(id(failure))
    return match.signature.id if match else f"unknown-{failure.cluster}"


def _of_match(match: Match, found: Scan) -> Finding:
    return Finding(
        signature=match.signature,
        text=match.text,
        line=match.line,
        process=match.process,
        ranks=() if match.rank is None else (match.rank,),
        processes=(match.process,),
        count=match.count,
        survived=match.line < found.progress,
    )


def _of_failure(failure: LoggedFailure, found: Scan) -> Finding:
    return Finding(
        signature=None,
        text=failure.text,
        line=failure.line,
        process=failure.process,
        ranks=() if failure.rank is None else (failure.rank,),
        processes=(failure.process,),
        count=1,
        survived=failure.line < found.progress,
        failure=failure,
    )


def _of_metrics(found: Scan, catalogue: Catalogue, beside: ComparedRuns) -> list[Finding]:
    matches = metric_matches(
        catalogue.metrics, found.series, reference=beside.reference, repeat=beside.repeat
    )
    return [
        Finding(
            signature=match.signature.as_signature(),
            text=match.text,
            line=match.line,
            process="",
            ranks=(),
            processes=("",),
            count=1,
            survived=False,
        )
        for match in matches
    ]


def _merged(group: list[Finding]) -> Finding:
    first = min(group, key=lambda finding: (finding.survived, finding.line))
    alive = [finding for finding in group if not finding.survived] or group
    return replace(
        first,
        ranks=tuple(dict.fromkeys(rank for finding in alive for rank in finding.ranks)),
        processes=tuple(dict.fromkeys(finding.process for finding in alive)),
        count=sum(finding.count for finding in alive),
    )


def _suspicious(found: Scan) -> list[Finding]:
    """The first of the last lines that looks like an error, when nothing better was found."""
    lines = [
        (number, text) for number, text in found.tail if number > found.progress and SUSPICIOUS.search(text)
    ]
    if not lines:
        return []
    number, text = lines[0]
    return [
        Finding(
            signature=None,
            text=text,
            line=number,
            process="",
            ranks=(),
            processes=("",),
            count=len(lines),
            survived=False,
        )
    ]


def _notes(found: Scan, findings: list[Finding]) -> tuple[str, ...]:
    notes = []
    if found.capped:
        notes.append("a match occurs a thousand times or more; further occurrences were not counted")
    if any(finding.survived for finding in findings):
        notes.append(
            f"training went on until line {found.progress}: failures before that line did not end the job"
        )
    return tuple(notes)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The same unknown failure in several logs."""

    id: str
    text: str
    stack: tuple[str, ...]
    places: tuple[str, ...]


def cluster(diagnoses: Mapping[str, Diagnosis]) -> tuple[Cluster, ...]:
    """Unknown root causes by normalised stack, largest group first; `diagnoses` is by place (file, cell)."""
    groups: dict[str, list[tuple[str, Finding]]] = {}
    for place, diagnosis in diagnoses.items():
        if diagnosis.root and not diagnosis.known:
            groups.setdefault(diagnosis.root.id, []).append((place, diagnosis.root))
    made = [
        Cluster(
            id=name,
            text=members[0][1].text,
            stack=members[0][1].failure.stack if members[0][1].failure else (),
            places=tuple(place for place, _finding in members),
        )
        for name, members in groups.items()
    ]
    return tuple(sorted(made, key=lambda one: -len(one.places)))
