"""report.json: the model as versioned JSON, one line per cell, and the JSON schema of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, Literal

from harness.ledger.plan_record import CellFinding
from harness.outcome import Evidence, Origin, Status, Tier, Trust
from harness.report.model.changes import RunChange
from harness.report.model.failure_patterns import FailurePattern
from harness.report.model.hardware_run import HardwareRun
from harness.report.model.logs import stored_name
from harness.report.model.marks import Mark
from harness.report.model.report_inputs import (
    CheckColumn,
    DiagnosisCard,
    ExcludedCombination,
    KnownFailure,
    PublishedStatement,
    ReportResult,
    RunFacts,
)
from harness.report.model.report_model import Attention, ReportModel, ReportRow
from harness.report.model.streak import CondensedHistory, Streak, Stretch
from harness.report.model.turning_points import Turn
from harness.report.model.unanswered import Unanswered
from harness.report.model.visible_text import as_bytes
from harness.serialisation import JsonValue, as_object, json_form
from harness.verdict.verdict import Standing

SCHEMA_NAME: Final = "npu-matrix.report"
SCHEMA_VERSION: Final = 1
#: What the JSON of a result contains if its history is empty.
_NO_HISTORY = b',"history":[],"turns":'
STANDINGS = {
    Standing.AS_EXPECTED: "",
    Standing.KNOWN: "known",
    Standing.UNEXPECTED: "unexpected",
    Standing.INCOMPLETE: "unexpected",
    Standing.UNEXPECTED_PASS: "unexpected-pass",
}


@dataclass(frozen=True, kw_only=True)
class SchemaId:
    """The name and version of this schema."""

    name: Literal["npu-matrix.report"] = SCHEMA_NAME
    version: Literal[1] = SCHEMA_VERSION


@dataclass(frozen=True, kw_only=True)
class CellCheck:
    """A check of a cell."""

    cell: str
    check: str


@dataclass(frozen=True, kw_only=True)
class Since:
    """The earlier run that `changes` compares with."""

    run: str
    started: float
    revision: str


@dataclass(frozen=True, kw_only=True)
class ReportedExpectation:
    """Why a failure is expected, where that is documented, and until when."""

    reason: str
    source: str
    until: str
    id: str
    owner: str


@dataclass(frozen=True, kw_only=True)
class ReportedFile:
    """An artifact and the digest of its content."""

    name: str
    digest: str
    size: int


# Not frozen, because a large report makes 80,000 of them, and a frozen one takes three times as long.
@dataclass(kw_only=True)
class ResultItem:
    """A verdict: the `status` of the check, and the `mark` that readers see.

    evidence: null if nothing was executed. origin: the machine that measured it; null in outcomes of earlier
    versions. trust: whether another machine recorded it, and who signed it. expected: "", `known`,
    `unexpected` or `unexpected-pass`.
    """

    check: str
    tier: Tier
    status: Status
    question: str
    expected: str
    reasons: tuple[str, ...]
    remedies: tuple[str, ...]
    evidence: Evidence | None
    key: str
    facets: Mapping[str, Any]
    measurements: Mapping[str, Any]
    environment: Mapping[str, Any]
    started: float
    seconds: float
    attempt: int
    run_id: str
    reused: bool
    origin: Origin | None
    trust: Trust | None
    reproduce: str
    expectation: ReportedExpectation | None
    diagnosis: DiagnosisCard | None
    artifacts: tuple[ReportedFile, ...]
    mark: Mark
    change: str
    streak: Streak | None
    history: tuple[Stretch, ...]
    turns: tuple[Turn, ...]
    hardware: HardwareRun | None
    missing: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CellItem:
    """A cell with its versions, where each version is declared, and its results."""

    id: str
    title: str
    stack: str
    axes: Mapping[str, str]
    provenance: Mapping[str, str]
    findings: tuple[CellFinding, ...]
    device: str
    recipe: str
    planned: tuple[str, ...]
    excluded: str = ""
    exports: tuple[str, ...]
    page: str
    worst: Mark | None
    published: tuple[PublishedStatement, ...]
    results: tuple[ResultItem, ...]


@json_form(schema_="schema")
@dataclass(frozen=True, kw_only=True)
class Report:
    """report.json."""

    schema_: SchemaId = SchemaId()
    generated: float
    headline: str
    proof: str
    complete: bool
    unanswered: tuple[Unanswered, ...]
    run: RunFacts
    checks: tuple[CheckColumn, ...]
    counts: Mapping[Mark, int]
    passed_by_evidence: Mapping[Evidence, int]
    planned: int
    missing: tuple[CellCheck, ...]
    attention: tuple[Attention, ...]
    patterns: tuple[FailurePattern, ...]
    since: Since | None
    changes: tuple[RunChange, ...]
    strangers: tuple[CellCheck, ...]
    excluded: tuple[ExcludedCombination, ...]
    known: tuple[KnownFailure, ...]
    host: Mapping[str, str]
    notes: tuple[str, ...]
    cells: tuple[CellItem, ...] = ()


@cache
def schema_text() -> str:
    """The JSON schema of report.json, as a file beside it."""
    return json.dumps(report_schema(), indent=1) + "\n"


def report_schema() -> dict[str, Any]:
    """The JSON schema of report.json."""
    from pydantic import TypeAdapter

    schema = TypeAdapter(Report).json_schema(mode="serialization")
    for part in (schema, *schema["$defs"].values()):
        if "properties" in part:
            part |= {"additionalProperties": False, "required": list(part["properties"])}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": f"{SCHEMA_NAME} {SCHEMA_VERSION}",
    }


def report_json(model: ReportModel, by_row: Iterable[bytes] | None = None) -> bytes:
    """The report as JSON. Numbers that JSON does not have become "NaN", "Infinity", "-Infinity".

    by_row: the line of each cell (`cell_line`) if they were made before.
    """
    return b"".join(report_parts(model, by_row))


def report_parts(model: ReportModel, by_row: Iterable[bytes] | None = None) -> Iterator[bytes]:
    """The parts of `report_json`: those of a large matrix are a hundred megabytes, which are not joined."""
    # One line per cell can be read with line tools; the fast encoder of the standard library does not indent.
    cells = by_row if by_row is not None else (cell_line(model, row) for row in model.rows)
    yield json_line(_report(model)).removesuffix(b"]}")
    separator = b"\n"
    for cell in cells:
        yield separator
        yield cell
        separator = b",\n"
    yield b"\n]}\n"


def run_of_report(text: bytes) -> str:
    """The id of the run that a report.json is about; "" if it has none. ValueError if it is no such file."""
    report = json.loads(text)
    if not isinstance(report, dict) or report.get("schema", {}).get("name") != SCHEMA_NAME:
        raise ValueError("this is no report.json")
    run = report.get("run")
    return str(run.get("run_id", "")) if isinstance(run, dict) else ""


def json_line(value: object) -> bytes:
    """Dataclasses, enums, mappings and tuples as one line of JSON in UTF-8."""
    try:
        return _dump(value).encode()
    except ValueError:
        # A number is not finite, or a text contains a lone surrogate.
        return _dump(_representable(json.loads(json.dumps(value, default=as_object)))).encode()


#: Made once, because `json.dumps` with options makes one for each line.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=as_object, check_circular=False
)


def _dump(value: object) -> str:
    return _ENCODER.encode(value)


def _representable(value: JsonValue) -> JsonValue:
    """JSON in which texts replace numbers that are not finite, and escapes replace lone surrogates."""
    if isinstance(value, str):
        return as_bytes(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, dict):
        return {as_bytes(name).decode(): _representable(item) for name, item in value.items()}
    return [_representable(item) for item in value] if isinstance(value, list) else value


def _report(model: ReportModel) -> Report:
    """All of the report except its cells."""
    earlier = model.inputs.earlier
    return Report(
        generated=model.inputs.generated,
        headline=model.headline,
        proof=model.proof,
        complete=model.complete,
        unanswered=model.unanswered,
        run=model.inputs.run,
        checks=model.checks,
        counts=model.counts,
        passed_by_evidence=model.passed,
        planned=model.planned,
        missing=tuple(CellCheck(cell=cell, check=check) for cell, check in model.missing),
        attention=model.attention,
        patterns=model.patterns,
        since=(
            Since(run=earlier.run_id, started=earlier.started, revision=earlier.revision) if earlier else None
        ),
        changes=model.changes,
        strangers=tuple(CellCheck(cell=result.cell_id, check=result.check) for result in model.strangers),
        excluded=model.inputs.excluded,
        known=model.inputs.known,
        host=model.inputs.host,
        notes=model.inputs.notes,
    )


def cell_line(model: ReportModel, row: ReportRow) -> bytes:
    """A cell and its results as one line of JSON."""
    cell = row.cell
    head = json_line(
        CellItem(
            id=cell.id,
            title=cell.title,
            stack=cell.stack,
            axes=cell.axes,
            provenance=cell.provenance,
            findings=cell.findings,
            device=cell.device,
            recipe=cell.recipe,
            planned=row.planned,
            exports=tuple(f"exports/{row.slug}/{stored_name(name)}" for name in row.exports),
            page=f"cells/{row.slug}.html",
            worst=row.worst,
            published=row.published,
            results=(),
        )
    )
    results = b",".join(_result_line(model, result) for result in row.results.values())
    return b"%b%b]}" % (head.removesuffix(b"]}"), results)


def _result_line(model: ReportModel, result: ReportResult) -> bytes:
    """A result as JSON. Its history, which many results share, is put in as text."""
    # No text contains a bare quote, and nothing after the history of a result has such members.
    # The dictionary of its fields, because the encoder would ask for each field by name.
    before, _, after = json_line(vars(_result(model, result))).rpartition(_NO_HISTORY)
    return b'%b,"history":%b,"turns":%b' % (before, _history_line(result.past), after)


@lru_cache(maxsize=16_384)
def _history_line(past: CondensedHistory) -> bytes:
    return json_line(past.stretches)


def _result(model: ReportModel, result: ReportResult) -> ResultItem:
    entry, verdict, outcome = result.entry, result.verdict, result.verdict.outcome
    expected = verdict.expected
    return ResultItem(
        check=entry.check,
        tier=entry.tier,
        status=verdict.status,
        question=entry.question,
        expected=STANDINGS[verdict.standing],
        reasons=verdict.reasons,
        remedies=verdict.remedies,
        evidence=verdict.evidence,
        key=entry.key,
        facets=result.facets,
        measurements=result.measurements,
        environment=outcome.environment if outcome else {},
        started=outcome.started if outcome else 0.0,
        seconds=outcome.seconds if outcome else 0.0,
        attempt=outcome.attempt if outcome else 1,
        run_id=outcome.run_id if outcome else "",
        reused=result.reused,
        origin=outcome.origin if outcome else None,
        trust=outcome.trust if outcome else None,
        reproduce=result.reproduce,
        expectation=(
            ReportedExpectation(
                reason=expected.reason,
                source=expected.source,
                until=expected.until,
                id=expected.id,
                owner=expected.owner,
            )
            if expected
            else None
        ),
        diagnosis=result.diagnosis,
        artifacts=tuple(
            ReportedFile(name=ref.name, digest=ref.digest, size=ref.size)
            for ref in (outcome.artifacts if outcome else ())
        ),
        mark=result.mark,
        change=result.change,
        streak=model.streak(result),
        history=(),
        turns=result.turns,
        hardware=result.hardware,
        missing=result.missing,
        notes=model.notes_on(result),
    )
