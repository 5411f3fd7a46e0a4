"""The data of a report before it is arranged: `gather` joins plan, ledger and verdicts into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.outcome import Evidence, Status, Tier

if TYPE_CHECKING:
    from harness.report.model.patch_facts import PatchFacts
    from harness.report.model.survival_facts import SurvivalFacts

KNOWN = "known"
UNEXPECTED = "unexpected"
UNEXPECTED_PASS = "unexpected-pass"  # noqa: S105 - a verdict, not a credential


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The run a report was made after.

    `started` is Unix seconds; `exit_code` None means still running. `revision`: the commit of the checkout,
    with a `+` where files differed from it. `options`: command-line options that select this ledger.
    """

    run_id: str = ""
    command: str = ""
    profile: str = ""
    revision: str = ""
    version: str = ""
    started: float = 0.0
    seconds: float = 0.0
    executed: int = 0
    reused: int = 0
    exit_code: int | None = None
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckInput:
    """A column of the grid."""

    name: str
    tier: Tier
    question: str = ""


@dataclass(frozen=True, kw_only=True)
class FindingInput:
    """Something known about a cell that is not an outcome: an inconsistency of its sources, a caveat."""

    what: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedInput:
    """A result that others published for a cell, with its source. Never shown as an outcome."""

    cell_id: str
    what: str
    source: str = ""
    date: str = ""


@dataclass(frozen=True, kw_only=True)
class ExcludedInput:
    """A combination the matrix rules out, and why."""

    axes: Mapping[str, str]
    reason: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class CellInput:
    """A row of the grid.

    axes: axis -> version. provenance: axis -> place in the matrix file. planned: names of the checks planned
    for the cell; a planned check without a result makes the report incomplete. excluded: why the cell is not
    run at all, or "". exports: the cell's lock in the forms people install from, by file name.
    """

    id: str
    title: str = ""
    stack: str = ""
    axes: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[FindingInput, ...] = ()
    device: str = ""
    recipe: str = ""
    planned: tuple[str, ...] = ()
    excluded: str = ""
    exports: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExpectationInput:
    """Why a failure is known, where that is written, and until when it holds."""

    reason: str
    source: str = ""
    until: str = ""


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """The verdict of an earlier run on the same check of the same cell; `time` is Unix seconds.

    key: differs from the previous entry's where an input changed. reused: the run used an older outcome.
    figures: the numbers of this check that are followed over runs (`trend.figures_of`).
    """

    time: float
    status: Status
    run_id: str = ""
    evidence: Evidence | None = None
    key: str = ""
    reused: bool = False
    figures: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class EarlierVerdict:
    """The verdict of a run on one check of one cell, in short."""

    status: Status
    reason: str = ""
    evidence: Evidence | None = None
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class EarlierInput:
    """The earlier run that a report is compared with, its verdicts, and which inputs differ since (`causes`).

    revision: the commit of the checkout then, or "".
    """

    run_id: str
    started: float
    revision: str = ""
    verdicts: Mapping[tuple[str, str], EarlierVerdict]
    causes: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DiagnosisInput:
    """The root cause that triage found in a log; `known`: whether a failure signature describes it.

    line: counted from 1. excerpt: that line. also: ids of what else was found.
    """

    id: str
    known: bool
    line: int
    excerpt: str
    cause: str = ""
    remedy: str = ""
    affects: str = ""
    sources: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ArtifactInput:
    """A file a task left; `path` is where it can be read now, None when it is gone."""

    name: str
    digest: str = ""
    size: int = 0
    path: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ResultInput:
    """The verdict on one check of one cell and all that led to it.

    expected: "" no expectation, "known" a known failure, "unexpected" a failure nobody expected,
    "unexpected-pass" a known failure that passed. evidence: None when nothing ran. `log_text` wins over
    `log_path`. facets: facet name -> digest or value. history: earlier verdicts, oldest first. seconds:
    wall time.
    """

    cell_id: str
    check: str
    tier: Tier
    status: Status
    question: str = ""
    expected: str = ""
    reasons: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    evidence: Evidence | None = None
    key: str = ""
    facets: Mapping[str, Any] = field(default_factory=dict)
    measurements: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    started: float = 0.0
    seconds: float = 0.0
    attempt: int = 1
    run_id: str = ""
    reused: bool = False
    log_text: str = ""
    log_path: Path | None = None
    artifacts: tuple[ArtifactInput, ...] = ()
    reproduce: str = ""
    history: tuple[HistoryEntry, ...] = ()
    expectation: ExpectationInput | None = None
    diagnosis: DiagnosisInput | None = None


@dataclass(frozen=True, kw_only=True)
class RunInput:
    """An earlier run that a reader can choose for a comparison. `revision`: its commit, or ""."""

    run_id: str
    started: float
    revision: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """Everything `build_model` needs. `generated` is Unix seconds; `checks` are the columns in order.

    runs: the earlier runs that histories speak of, newest first.
    """

    generated: float
    cells: tuple[CellInput, ...]
    checks: tuple[CheckInput, ...] = ()
    results: tuple[ResultInput, ...] = ()
    run: RunFacts = field(default_factory=RunFacts)
    host: Mapping[str, str] = field(default_factory=dict)
    excluded: tuple[ExcludedInput, ...] = ()
    published: tuple[PublishedInput, ...] = ()
    notes: tuple[str, ...] = ()
    earlier: EarlierInput | None = None
    runs: tuple[RunInput, ...] = ()
    survival: SurvivalFacts | None = None
    patches: PatchFacts | None = None
