"""The shape of report.json, for those who read it: pydantic models and the JSON schema made of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from harness.outcome import Evidence, Status, Tier
from harness.report.formats.json_export import SCHEMA_NAME, SCHEMA_VERSION
from harness.report.model.changes import RunChangeKind
from harness.report.model.marks import Mark


class _SchemaPart(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SchemaId(_SchemaPart):
    """Which schema this is."""

    name: Literal["npu-matrix.report"]
    version: Literal[1]


class ReportedRun(_SchemaPart):
    """The run behind the report."""

    run_id: str
    command: str
    profile: str
    revision: str
    version: str
    started: float
    seconds: float
    executed: int
    reused: int
    exit_code: int | None
    options: list[str]


class CheckColumn(_SchemaPart):
    """A check, in the order of the grid."""

    name: str
    tier: Tier
    question: str


class CellCheck(_SchemaPart):
    """A check of a cell."""

    cell: str
    check: str


class AttentionItem(_SchemaPart):
    """What a person should look at."""

    check: str
    mark: Mark
    evidence: Evidence | None
    change: str
    reason: str
    remedy: str
    cells: list[str]


class PatternItem(_SchemaPart):
    """What failing cells share."""

    check: str
    condition: str
    failing: int
    passing: int
    also: list[str]


class Sourced(_SchemaPart):
    """A note on a cell, with its source."""

    what: str
    source: str


class PublishedItem(_SchemaPart):
    """What others say of a cell: never evidence."""

    cell_id: str
    what: str
    source: str
    date: str


class StretchItem(_SchemaPart):
    """Earlier runs in a row with the same verdict and evidence."""

    status: Status
    evidence: Evidence | None
    runs: int
    inputs: int
    first_run: str
    first: float
    last_run: str
    last: float


class StreakItem(_SchemaPart):
    """Since which run it has stood as it stands, and what stood before."""

    runs: int
    since_run: str
    since: float
    before: Status | None
    until_run: str
    until: float


class Said(_SchemaPart):
    """The verdict of a run, in short."""

    status: Status
    reason: str
    evidence: Evidence | None
    key: str


class ChangeItem(_SchemaPart):
    """A difference from the run that this one is compared with."""

    turn: RunChangeKind
    cell: str
    check: str
    before: Said | None
    after: Said | None
    causes: list[str]


class Since(_SchemaPart):
    """The run that this one is compared with."""

    run: str
    started: float
    revision: str


class ExpectationItem(_SchemaPart):
    """Why a failure is known, and until when."""

    reason: str
    source: str
    until: str


class DiagnosisItem(_SchemaPart):
    """What the catalogue of known failures says of the log; `line` counts from 1."""

    id: str
    known: bool
    line: int
    excerpt: str
    cause: str
    remedy: str
    affects: str
    sources: list[str]
    also: list[str]


class ReportedFile(_SchemaPart):
    """An artifact by content."""

    name: str
    digest: str
    size: int


class ResultItem(_SchemaPart):
    """A verdict: `status` is the check's, `mark` what readers see, `evidence` null where nothing ran."""

    check: str
    tier: Tier
    question: str
    status: Status
    mark: Mark
    expected: str
    change: str
    streak: StreakItem | None
    missing: bool
    notes: list[str]
    reasons: list[str]
    remedies: list[str]
    evidence: Evidence | None
    key: str
    facets: dict[str, Any]
    measurements: dict[str, Any]
    environment: dict[str, Any]
    started: float
    seconds: float
    attempt: int
    run_id: str
    reused: bool
    artifacts: list[ReportedFile]
    reproduce: str
    history: list[StretchItem]
    expectation: ExpectationItem | None
    diagnosis: DiagnosisItem | None


class CellItem(_SchemaPart):
    """A cell with its versions, where each is declared, and its results."""

    id: str
    title: str
    stack: str
    axes: dict[str, str]
    provenance: dict[str, str]
    findings: list[Sourced]
    device: str
    recipe: str
    planned: list[str]
    excluded: str
    exports: list[str]
    page: str
    worst: Mark | None
    published: list[PublishedItem]
    results: list[ResultItem]


class ExcludedItem(_SchemaPart):
    """A combination that is ruled out."""

    axes: dict[str, str]
    reason: str
    source: str


class Report(_SchemaPart):
    """report.json."""

    schema_: SchemaId
    generated: float
    headline: str
    proof: str
    complete: bool
    run: ReportedRun
    checks: list[CheckColumn]
    counts: dict[Mark, int]
    passed_by_evidence: dict[Evidence, int]
    planned: int
    missing: list[CellCheck]
    attention: list[AttentionItem]
    patterns: list[PatternItem]
    since: Since | None
    changes: list[ChangeItem]
    cells: list[CellItem]
    strangers: list[CellCheck]
    excluded: list[ExcludedItem]
    host: dict[str, str]
    notes: list[str]

    model_config = ConfigDict(extra="forbid", alias_generator=lambda name: name.rstrip("_"))


def report_schema() -> dict[str, Any]:
    """The JSON schema of report.json."""
    schema = Report.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{SCHEMA_NAME} {SCHEMA_VERSION}",
        **schema,
    }
