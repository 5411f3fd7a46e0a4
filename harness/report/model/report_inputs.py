"""The data from which `report_model.build_model` makes a report; `gather` collects it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from harness.ledger.plan_record import CellFacts, PlanEntry
from harness.outcome import Evidence, Tier
from harness.report.model.commit_notes import CommitNotes
from harness.report.model.hardware_run import HardwareRun
from harness.report.model.marks import RAN, Mark, mark_of
from harness.report.model.streak import (
    CondensedHistory,
    EarlierVerdict,
    History,
    change_of,
)
from harness.report.model.turning_points import Turn
from harness.report.model.typed_measurements import typed_measurements
from harness.serialisation import JsonValue
from harness.sources.issue_states import IssueState
from harness.verdict.verdict import Verdict

if TYPE_CHECKING:
    from harness.report.model.patch_facts import PatchFacts
    from harness.report.model.survival_facts import NameFacts, SurvivalFacts


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The run that a report is about.

    started: Unix seconds. exit_code: None while the run is in progress. revision: the commit of the checkout,
    with a `+` if files differed from it. options: command-line options that select this ledger. selection:
    the options that selected cells or checks of the profile; "" for the whole profile.
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
    selection: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckColumn:
    """A column of the grid."""

    name: str
    tier: Tier
    question: str = ""


@dataclass(frozen=True, kw_only=True)
class PublishedStatement:
    """A statement that others published about a cell, with its source. It is never shown as an outcome."""

    cell_id: str
    what: str
    source: str = ""
    date: str = ""


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """An expected failure of matrix.yaml, also one that covers no result of this report.

    until: a date, or an axis and a version specifier. fault: why it must be changed or removed, or "". cells:
    the cells that it covers. issues: those that its source names, with their states as last seen.
    """

    id: str
    owner: str
    check: str
    state: str
    reason: str
    source: str
    until: str
    where: str = ""
    fault: str = ""
    cells: tuple[str, ...] = ()
    issues: tuple[IssueState, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExcludedCombination:
    """A combination of versions that matrix.yaml excludes, and why."""

    axes: Mapping[str, str]
    reason: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class ComparisonRun:
    """The earlier run that a report is compared with, and its verdicts.

    causes: (cell, check) -> which inputs differ since that run. revision: the commit of its checkout, or "".
    """

    run_id: str
    started: float
    revision: str = ""
    verdicts: Mapping[tuple[str, str], EarlierVerdict]
    causes: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DiagnosisCard:
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
class ReportResult:
    """An entry of the plan with its verdict: a tile of the grid and a section on its cell's page.

    facets: name -> value of each facet of the task. reused: an earlier run produced the outcome. reproduce:
    the command that runs the task again, "" without a task. log: the file with the task's output. files:
    digest of an artifact -> where it can be read; artifacts that are gone are not in it. history: verdicts of
    earlier runs, oldest first. turns: when the verdict turned, oldest first. hardware: when a
    real NPU last ran it. missing: the check
    was planned, but there is no verdict.
    """

    entry: PlanEntry
    verdict: Verdict
    facets: Mapping[str, JsonValue] = field(default_factory=dict)
    reused: bool = False
    reproduce: str = ""
    log: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    history: History = field(default_factory=History)
    turns: tuple[Turn, ...] = ()
    hardware: HardwareRun | None = None
    diagnosis: DiagnosisCard | None = None
    missing: bool = False

    @property
    def cell_id(self) -> str:
        """The cell."""
        return self.entry.cell_id

    @property
    def check(self) -> str:
        """The name of the check."""
        return self.entry.check

    @property
    def reason(self) -> str:
        """The first reason of the verdict, or ""."""
        return self.verdict.reasons[0] if self.verdict.reasons else ""

    @property
    def remedy(self) -> str:
        """The first remedy of the verdict, or ""."""
        return self.verdict.remedies[0] if self.verdict.remedies else ""

    @property
    def measurements(self) -> Mapping[str, JsonValue]:
        """The stored measurements; empty without an outcome."""
        return self.verdict.outcome.measurements if self.verdict.outcome else {}

    @cached_property
    def typed(self) -> object | None:
        """The measurements as the dataclass of their check, None without one; read once for all pages."""
        return typed_measurements(self.check, self.measurements)

    @cached_property
    def mark(self) -> Mark:
        """How the verdict is shown."""
        return mark_of(self.verdict.status, self.verdict.standing)

    @property
    def shown_evidence(self) -> Evidence | None:
        """The evidence of a check that ran to a verdict; None for all others."""
        return self.verdict.evidence if self.mark in RAN else None

    @cached_property
    def change(self) -> str:
        """Compared with the last run that had an outcome: `broken`, `fixed`, `lost` or ""."""
        return change_of(self.history, self.mark)

    @property
    def past(self) -> CondensedHistory:
        """The history, oldest first, with equal verdicts in a row combined."""
        return self.history.condensed


@dataclass(frozen=True, kw_only=True)
class RememberedRun:
    """An earlier run that readers can choose for a comparison; `revision` is its commit, or "".

    machine: the name of its runner, else the beginning of its fingerprint, "" if not recorded.
    """

    run_id: str
    started: float
    revision: str = ""
    machine: str = ""


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """Everything `build_model` needs. `generated` is Unix seconds; `checks` are the columns in order.

    planned: cell -> names of its planned checks; a planned check without a result makes the report
    incomplete. exports: cell -> its lock in the formats that can be installed from, by file name. runs: the
    runs that the histories refer to, newest first. commits: those between runs whose verdicts differ.
    known: the expected failures that matrix.yaml declares.
    """

    generated: float
    cells: tuple[CellFacts, ...] = ()
    planned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exports: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    checks: tuple[CheckColumn, ...] = ()
    results: tuple[ReportResult, ...] = ()
    run: RunFacts = field(default_factory=RunFacts)
    host: Mapping[str, str] = field(default_factory=dict)
    excluded: tuple[ExcludedCombination, ...] = ()
    published: tuple[PublishedStatement, ...] = ()
    notes: tuple[str, ...] = ()
    earlier: ComparisonRun | None = None
    runs: tuple[RememberedRun, ...] = ()
    commits: CommitNotes = field(default_factory=CommitNotes)
    known: tuple[KnownFailure, ...] = ()
    survival: SurvivalFacts | None = None
    names: NameFacts | None = None
    patches: PatchFacts | None = None
