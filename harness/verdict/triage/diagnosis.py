"""Determines from a log why a job failed: ranks the findings, so that the cause comes before its symptoms."""

from __future__ import annotations

import io
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from harness.compat.knowledge.pack_at_hand import PackAtHand, shipped_pack
from harness.convergence.telemetry.tensorboard import read
from harness.convergence.telemetry.verl_metrics import FIRST_STEP, METRICS
from harness.errors import InputError, Location
from harness.verdict.triage.catalogue import Catalogue, Signature, shipped_catalogue
from harness.verdict.triage.code_tables import UNSPECIFIC
from harness.verdict.triage.derived.cause_degree import DerivedCause
from harness.verdict.triage.derived.derived_cause import CauseFinder
from harness.verdict.triage.derived.derived_signature import as_symptom, derive
from harness.verdict.triage.derived.logged_versions import LoggedVersion, given_versions
from harness.verdict.triage.error_lines import ERROR_LEVEL
from harness.verdict.triage.job_end import STANDS_STILL, Ending, JobProgress
from harness.verdict.triage.last_lines import suspicious_lines, unusual_lines
from harness.verdict.triage.log_scan import MANY, Match, Scan, scans
from harness.verdict.triage.metric_series import MetricSeries
from harness.verdict.triage.metric_triage import cause_with_settings, metric_matches
from harness.verdict.triage.stack_trace import UNFINISHED, LoggedFailure, innermost

SCHEMA = {"name": "npu-matrix.triage", "version": 1}
#: TensorBoard's event files have this in their names.
EVENTS = "tfevents"
# After the message of a native function of torch_npu, CANN's own report follows in several lines.
NATIVE = re.compile(r"(?:NPU|HCCL) function error|NPU error, error code is|\w+\.(?:cpp|ts):\d{1,6}")
NATIVE_LINES = 12
#: Packages that are only installed for NPUs, and the axes of a matrix that are.
OF_NPUS = frozenset({"torch-npu", "vllm-ascend", "triton-ascend", "mindspeed", "cann"})


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One failure in a log, which several ranks may report.

    signature: None for an unknown failure. count: number of occurrences on all ranks. survived: the job
    continued after it. mild: the program that reported it did not consider it an error. device, remote_rank:
    those that its text names. derived: the cause, if it was computed; `signature` then has its texts.
    """

    signature: Signature | None
    text: str
    line: int
    process: str = ""
    ranks: tuple[int, ...] = ()
    processes: tuple[str, ...] = ("",)
    count: int = 1
    survived: bool = False
    mild: bool = False
    device: int | None = None
    remote_rank: int | None = None
    failure: LoggedFailure | None = None
    derived: DerivedCause | None = None

    @property
    def id(self) -> str:
        """The signature's id, or `unknown-` and the digest of the normalised stack."""
        if self.signature:
            return self.signature.id
        return f"unknown-{self.failure.cluster}" if self.failure else "unknown"

    @property
    def order(self) -> tuple[bool, int, int]:
        """Sort key: failures that ended the job first; causes, symptoms, warnings; then by line."""
        return (self.survived, self._weight, self.line)

    @property
    def _weight(self) -> int:
        if self.mild:
            return 3
        if self.signature is None:
            if self.failure is None or self.failure.type in {ERROR_LEVEL, UNFINISHED}:
                return 2
            return 1 if self.failure.secondary else 0
        if self.signature.severity != "error":
            return 3 if self.signature.severity == "warning" else 4
        if self.signature.role == "symptom":
            return 2 if self.signature.id.endswith(UNSPECIFIC) else 1
        return 0

    def to_json(self) -> dict[str, object]:
        """As JSON. `rank` is the first rank that reports it, null if the log does not name one."""
        known = self.signature
        return {
            "id": self.id,
            "known": known is not None,
            "line": self.line,
            "rank": self.ranks[0] if self.ranks else None,
            "ranks": list(self.ranks),
            "device": self.device,
            "remote_rank": self.remote_rank,
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
            "degree": self.derived.degree.value if self.derived else None,
            "stacks": list(self.derived.stacks) if self.derived else [],
            "stack": list(self.failure.stack) if self.failure else [],
        }


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why a job failed, according to its log. `findings` are ranked, the most likely cause first.

    ending: what the log shows of the end of the job. versions: package -> its version, if the log shows one.
    """

    findings: tuple[Finding, ...]
    lines: int
    size: int
    notes: tuple[str, ...] = ()
    ending: Ending = field(default_factory=lambda: Ending(kind="working"))
    versions: Mapping[str, LoggedVersion] = field(default_factory=dict)

    @property
    def root(self) -> Finding | None:
        """The failure that most likely ended the job; None if there is none."""
        return next((finding for finding in self.findings if not finding.survived), None)

    @property
    def first(self) -> Finding | None:
        """The failure that was reported first, of those that the job did not survive, or None."""
        fatal = [one for one in self.findings if not one.survived and one.line]
        return min(fatal, key=lambda finding: finding.line, default=None)

    @property
    def is_clean(self) -> bool:
        """Whether the log shows that the job worked, and no failure that ended it."""
        return self.root is None and self.ending.is_clean

    @property
    def known(self) -> bool:
        """Whether a signature explains the root cause. Symptoms and warnings do not count."""
        root = self.root
        return bool(
            root
            and root.signature
            and not root.mild
            and root.signature.role == "cause"
            and root.signature.severity == "error"
        )

    def to_json(self) -> dict[str, object]:
        """The diagnosis as JSON (schema `npu-matrix.triage`)."""
        return {
            "schema": SCHEMA,
            "known": self.known,
            "root": self.root.to_json() if self.root else None,
            "first": self.first.to_json() if self.first else None,
            "ending": {
                "kind": self.ending.kind,
                "step": self.ending.last,
                "steps": self.ending.total,
                "clean": self.is_clean,
            },
            "versions": {name: one.version for name, one in sorted(self.versions.items())},
            "matches": [finding.to_json() for finding in self.findings],
            "lines": self.lines,
            "bytes": self.size,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class ComparedRuns:
    """Runs whose metrics are compared with those of the log: a correct run, and a repetition of this run."""

    reference: MetricSeries | None = None
    repeat: MetricSeries | None = None


#: Package or axis -> its version, where it is known from elsewhere than the log.
GivenVersions = Mapping[str, str]


def triage_text(
    log: bytes,
    catalogue: Catalogue | None = None,
    *,
    compared: ComparedRuns | None = None,
    versions: GivenVersions | None = None,
    surfaces: PackAtHand | None = None,
) -> Diagnosis:
    """The diagnosis of a log in memory."""
    return triage(
        io.BytesIO(log),
        catalogue or shipped_catalogue(),
        compared=compared,
        versions=versions,
        surfaces=surfaces,
    )


def triage_file(
    path: Path,
    catalogue: Catalogue | None = None,
    *,
    compared: ComparedRuns | None = None,
    versions: GivenVersions | None = None,
    surfaces: PackAtHand | None = None,
) -> Diagnosis:
    """The diagnosis of a log file of any size; InputError if it cannot be read."""
    found = triage_members(path, catalogue, compared=compared, versions=versions, surfaces=surfaces)
    return _worst(found)


def triage_members(
    path: Path,
    catalogue: Catalogue | None = None,
    *,
    compared: ComparedRuns | None = None,
    versions: GivenVersions | None = None,
    surfaces: PackAtHand | None = None,
) -> dict[str, Diagnosis]:
    """The diagnoses of the logs in an archive by their names there; of another log, its own by ""."""
    used = catalogue or shipped_catalogue()
    return {
        name: diagnose(found, used, compared=compared, versions=versions, surfaces=surfaces)
        for name, found in _scan_file(path, used)
    }


def _worst(found: Mapping[str, Diagnosis]) -> Diagnosis:
    """The first diagnosis that shows a failure, or else nothing that is known, of the logs of an archive."""
    order = sorted(found.items(), key=lambda item: (item[1].is_clean, item[1].root is None))
    name, worst = order[0]
    if len(order) == 1:
        return worst
    note = f"this is the log {name} of an archive with {len(order)} logs"
    return replace(worst, notes=(note, *worst.notes))


def read_series(path: Path, catalogue: Catalogue | None = None) -> MetricSeries:
    """The metrics by step in a log; InputError if it cannot be read or contains no training step."""
    found = [one.series for _name, one in _scan_file(path, catalogue or shipped_catalogue())]
    series = next((one for one in found if one.values), MetricSeries())
    if not series.values:
        raise InputError(
            "this log contains no training step with a known metric",
            where=Location(path),
            fix="pass verl's console log, or the file that its `file` logger wrote",
        )
    return series


def _scan_file(path: Path, catalogue: Catalogue) -> list[tuple[str, Scan]]:
    if EVENTS in path.name:
        return [("", _scan_events(path))]
    try:
        with path.open("rb") as stream:
            return list(scans(stream, catalogue))
    except OSError as error:
        raise InputError(
            "this log cannot be read",
            where=Location(path),
            why=error.strerror or str(error),
            fix="pass a log file",
        ) from error


def _scan_events(path: Path) -> Scan:
    """The metrics of a TensorBoard event file, by the names that verl's console log has."""
    found = read(path)
    if not found.runs:
        raise InputError(
            "this TensorBoard file has no training step",
            where=Location(path),
            why="; ".join(found.problems),
            fix="pass the file that the job wrote, or its console log",
        )
    values = {
        METRICS[name][0]: {FIRST_STEP + index: value for index, value in enumerate(series)}
        for name, series in found.runs[0].series.items()
        if name in METRICS
    }
    lines = dict.fromkeys(range(FIRST_STEP, FIRST_STEP + found.runs[0].steps), 0)
    return Scan(
        series=MetricSeries(names=tuple(values), values=values, lines=lines),
        job=JobProgress(line=1),
        size=path.stat().st_size,
        is_empty=False,
    )


def triage(
    stream: BinaryIO,
    catalogue: Catalogue,
    *,
    compared: ComparedRuns | None = None,
    versions: GivenVersions | None = None,
    surfaces: PackAtHand | None = None,
) -> Diagnosis:
    """The diagnosis of a log, which is read once and with bounded memory."""
    return _worst(
        {
            name: diagnose(found, catalogue, compared=compared, versions=versions, surfaces=surfaces)
            for name, found in scans(stream, catalogue)
        }
    )


def diagnose(
    found: Scan,
    catalogue: Catalogue,
    *,
    compared: ComparedRuns | None = None,
    versions: GivenVersions | None = None,
    surfaces: PackAtHand | None = None,
) -> Diagnosis:
    """Group matches and exceptions by failure, and rank the failures. Findings from metrics come last.

    surfaces: the releases of packages that causes are derived from, None for the shipped ones.
    """
    shown = {**found.versions.known(), **given_versions(versions or {})}
    found.has_npu = found.has_npu or not OF_NPUS.isdisjoint(shown)
    finder = CauseFinder(versions=shown, surfaces=surfaces or shipped_pack())
    # What the log before this one has needed of the releases.
    finder.surfaces.trim()
    explained = _explained(found)
    tracebacks = {id(match): failure for failure in found.failures if (match := explained[id(failure)])}
    last = innermost([failure for failure in found.failures if failure.line > found.progress])
    if last:
        # Only so many failures are looked up: the last one, then the first ones.
        finder.look_up(last.text, last.frames)
    groups: dict[str, list[Finding]] = {}
    ids: dict[int, str] = {}
    # What ended the job comes first: only for that causes are looked up.
    for match in sorted(found.matches, key=lambda match: match.line < found.progress):
        finding = _derived(_match_finding(match, found), tracebacks.get(id(match)), finder)
        ids[id(match)] = finding.id
        groups.setdefault(finding.id, []).append(finding)
    for failure in sorted(found.failures, key=lambda failure: failure.line < found.progress):
        if explained[id(failure)] is None:
            finding = _derived(_failure_finding(failure, found), failure, finder)
            ids[id(failure)] = finding.id
            groups.setdefault(finding.id, []).append(finding)
    last_id = ids.get(id(explained[id(last)] or last)) if last else None
    findings = sorted(
        (_merged(group) for group in groups.values()),
        # If there are several causes, the exception of the last process that died is the most likely one.
        key=lambda finding: (*finding.order[:2], finding.id != last_id, finding.line),
    )
    # What a program does not consider an error ended no job, if it went on or its end was shown before.
    ending = _ending(found)
    harmless = found.lines if ending.kind == "finished" else found.progress
    findings = [finding for finding in findings if not (finding.mild and finding.line <= harmless)]
    findings += _metric_findings(found, catalogue, compared or ComparedRuns())
    findings += _standstill(found)
    if all(finding.survived for finding in findings):
        findings += [_derived(one, None, finder) for one in _suspicious(found)]
    return Diagnosis(
        findings=tuple(findings),
        lines=found.lines,
        size=found.size,
        notes=_notes(found, findings, finder.surfaces.note),
        ending=ending,
        versions=shown,
    )


def _explained(found: Scan) -> dict[int, Match | None]:
    """id() of each failure -> the signature match in its traceback, or None.

    Matches on lines of source in a traceback become symptoms: its exception is nearer to the cause than a
    line which raises whatever exception it was given.
    """
    by_process: dict[str, list[int]] = {}
    for index, match in enumerate(found.matches):
        by_process.setdefault(match.process, []).append(index)
    explained: dict[int, Match | None] = {}
    for failure in found.failures:
        indices = by_process.get(failure.process, [])
        first = bisect_left(indices, failure.first, key=lambda index: found.matches[index].line)
        explained[id(failure)] = None
        for index in indices[first:]:
            match = found.matches[index]
            if match.line > failure.line + _continuation(failure):
                break
            if not _is_source(match, failure):
                explained[id(failure)] = match
                break
            as_symptom = match.signature.model_copy(update={"role": "symptom"})
            found.matches[index] = replace(match, signature=as_symptom)
    return explained


def _is_source(match: Match, failure: LoggedFailure) -> bool:
    """Whether a match is on a line of source in a traceback that ends with another message."""
    if not failure.message or failure.type == UNFINISHED or match.signature.regex.search(failure.text):
        return False
    return any(frame.code and match.text.strip() == frame.code for frame in failure.frames)


def _continuation(failure: LoggedFailure) -> int:
    """How many lines after a failure still belong to its message."""
    if NATIVE.search(failure.message):
        return NATIVE_LINES
    return 1 if failure.message.endswith(":") else 0


def _derived(finding: Finding, failure: LoggedFailure | None, finder: CauseFinder) -> Finding:
    """The finding with a derived cause, if there is one that tells more than its signature."""
    if finding.mild:
        return finding
    frames = failure.frames if failure else ()
    if finding.signature:
        shown = (f"{frame.place} {frame.code}" for frame in frames)
        at_place = finding.signature.at(shown)
        versions = {name: one.version for name, one in finder.versions.items()} if at_place.installed else {}
        finding = replace(finding, signature=at_place.given(versions))
    # The line that a signature matched may say more than the exception in whose message it is.
    texts = (failure.text, finding.text) if failure else (finding.text,)
    causes = (derive(finder, text, frames, finding.signature, survived=finding.survived) for text in texts)
    found = next((one for one in causes if one), None)
    if found and failure and failure.type == ERROR_LEVEL:
        # A program that logs what it could not use, and no exception, may go on without it.
        found = as_symptom(*found)
    return replace(finding, signature=found[0], derived=found[1]) if found else finding


def _match_finding(match: Match, found: Scan) -> Finding:
    return Finding(
        signature=match.signature.seen(with_npu=found.has_npu),
        text=match.text,
        line=match.line,
        process=match.process,
        ranks=() if match.rank is None else (match.rank,),
        processes=(match.process,),
        count=match.count,
        survived=match.line < found.progress,
        mild=match.mild,
        device=match.places.device,
        remote_rank=match.places.remote_rank,
    )


def _failure_finding(failure: LoggedFailure, found: Scan) -> Finding:
    return Finding(
        signature=None,
        text=failure.text,
        line=failure.line,
        process=failure.process,
        ranks=() if failure.rank is None else (failure.rank,),
        processes=(failure.process,),
        survived=failure.line < found.progress,
        failure=failure,
    )


def _standstill(found: Scan) -> list[Finding]:
    stood = found.job.standstill()
    return [Finding(signature=STANDS_STILL, text=stood[1], line=stood[0])] if stood else []


def _metric_findings(found: Scan, catalogue: Catalogue, compared: ComparedRuns) -> list[Finding]:
    matches = metric_matches(
        catalogue.metrics, found.series, reference=compared.reference, repeat=compared.repeat
    )
    seen = {name: (one.is_on, one.line) for name, one in found.settings.items()}
    return [
        Finding(
            signature=match.signature.as_signature(
                cause_with_settings(match.signature, catalogue.settings, seen)
            ),
            text=match.text,
            line=match.line,
        )
        for match in matches
    ]


def _merged(group: list[Finding]) -> Finding:
    first = min(group, key=lambda finding: (finding.survived, finding.line))
    fatal = [finding for finding in group if not finding.survived] or group
    return replace(
        first,
        ranks=tuple(dict.fromkeys(rank for finding in fatal for rank in finding.ranks)),
        processes=tuple(dict.fromkeys(finding.process for finding in fatal)),
        count=sum(finding.count for finding in fatal),
    )


def _ending(found: Scan) -> Ending:
    """How the log ends. It is unclear where lines follow that are unlike those of the working job."""
    ending = found.job.ending(is_empty=found.is_empty, last_step=max(found.series.lines, default=0))
    if found.problems:
        return replace(ending, kind="unread")
    if ending.kind != "working" or not found.progress:
        return ending
    others = unusual_lines(found.tail, found.progress, warning=found.last_warning)
    return replace(ending, kind="unclear", line=others[0][0]) if others else ending


def _suspicious(found: Scan) -> list[Finding]:
    """The first of the last lines that looks like an error, if there is one."""
    lines = suspicious_lines(found.tail, found.progress, ended=found.job.end >= found.progress > 0)
    return [Finding(signature=None, text=lines[0][1], line=lines[0][0], count=len(lines))] if lines else []


def _notes(found: Scan, findings: list[Finding], note: str) -> tuple[str, ...]:
    notes = [note] if note else []
    notes += found.problems
    if found.capped:
        notes.append(f"a match occurs {MANY} times or more; further occurrences were not counted")
    if found.series.is_reversed:
        notes.append("the steps are in descending order: this log shows its newest line first")
    if any(finding.survived for finding in findings):
        notes.append(
            f"training continued until line {found.progress}: failures before that line did not end the job"
        )
    return tuple(notes)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The same unknown failure in several logs (`places`)."""

    id: str
    text: str
    stack: tuple[str, ...]
    places: tuple[str, ...]


def cluster(diagnoses: Mapping[str, Diagnosis]) -> tuple[Cluster, ...]:
    """Group unknown root causes by normalised stack, largest group first. diagnoses: log -> diagnosis."""
    groups: dict[str, dict[str, Finding]] = {}
    for place, diagnosis in diagnoses.items():
        if diagnosis.root and not diagnosis.known:
            groups.setdefault(diagnosis.root.id, {})[place] = diagnosis.root
    clusters = []
    for name, roots in groups.items():
        first = next(iter(roots.values()))
        stack = first.failure.stack if first.failure else ()
        clusters.append(Cluster(id=name, text=first.text, stack=stack, places=tuple(roots)))
    return tuple(sorted(clusters, key=lambda cluster: -len(cluster.places)))
