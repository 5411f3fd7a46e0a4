"""Known failures as data: what their logs say, why it happens, what to do, and who says so."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import HarnessError, InputError, Location, Problem
from harness.package import data_folder

FOLDER = data_folder("verdict/triage/signatures")
#: Beside matrix.yaml: what `triage --learn` adds to.
LOCAL_NAME = "signatures.yaml"
#: A needle this long holds a whole aligned group of four bytes wherever it starts (see `needles`).
SHORTEST_NEEDLE = 7
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Each of them lets a long hostile line take quadratic time.
UNBOUNDED = re.compile(r"(?<!\\)\.[*+]")
_NEVER = re.compile(r"(?!)")

Severity = Literal["error", "warning", "note"]
Role = Literal["cause", "symptom"]
MetricRule = Literal[
    "above", "far-below-reference", "nothing-at-first", "mean-apart", "worse-at-last", "not-repeatable"
]


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A failure a log can be recognised by.

    needles: literal texts of at least seven bytes; whatever `pattern` matches contains one of them.
    role: a symptom only says that something failed elsewhere or before.
    evidence: reproduced, source, docs, seed: seen verbatim; issue: shortened from a report; learned: of a
    user's log.
    """

    id: str
    area: str
    stage: str
    severity: Severity
    role: Role
    evidence: str
    pattern: re.Pattern[str]
    needles: tuple[str, ...]
    example: str
    cause: str
    remedy: str
    affects: str
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MetricSignature:
    """A failure that shows in metrics: `rule` with its `limit` (see signatures/metrics.yaml).

    metrics: names as verl logs them, the first that a log has counts; one that ends in `/` is a beginning.
    """

    id: str
    metrics: tuple[str, ...]
    symptom: str
    cause: str
    remedy: str
    sources: tuple[str, ...]
    rule: MetricRule
    limit: float
    derivation: str

    def as_signature(self) -> Signature:
        """The same as a signature of logs, which no line matches."""
        return Signature(
            id=self.id,
            area="metrics",
            stage="train",
            severity="error",
            role="cause",
            evidence="issue",
            pattern=_NEVER,
            needles=(),
            example=self.symptom,
            cause=self.cause,
            remedy=self.remedy,
            affects=f"{', '.join(self.metrics)}: {self.symptom}",
            sources=self.sources,
        )


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """All signatures, in the order of their files."""

    signatures: tuple[Signature, ...]
    metrics: tuple[MetricSignature, ...] = ()

    def matching(self, text: str) -> tuple[Signature, ...]:
        """The signatures a line matches."""
        return tuple(signature for signature in self.signatures if signature.pattern.search(text))


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{1,60}$")
    stage: str = "unknown"
    severity: Severity = "error"
    role: Role = "cause"
    evidence: Literal["reproduced", "source", "docs", "seed", "issue", "learned"] = "learned"
    pattern: str = Field(min_length=1, max_length=2000)
    needles: list[str] = Field(min_length=1)
    example: str = Field(min_length=1)
    cause: str = Field(min_length=1)
    remedy: str = Field(min_length=1)
    affects: str = "unknown"
    sources: list[str] = Field(min_length=1)


class _MetricEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    id: str
    metrics: list[str]
    symptom: str
    cause: str
    remedy: str
    sources: list[str]
    rule: MetricRule
    limit: float = Field(gt=0)
    derivation: str = Field(min_length=1)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    area: str = "local"
    signatures: list[_Entry] = Field(default_factory=list)
    metric_signatures: list[_MetricEntry] = Field(default_factory=list)


@functools.cache
def shipped_catalogue() -> Catalogue:
    """The catalogue that comes with this program."""
    return load_catalogue(sorted(FOLDER.glob("*.yaml")))


def catalogue_with(local: Path) -> Catalogue:
    """The shipped catalogue, and the file `local` on top where there is one."""
    if not local.is_file():
        return shipped_catalogue()
    return load_catalogue([*sorted(FOLDER.glob("*.yaml")), local])


def load_catalogue(files: Iterable[Path]) -> Catalogue:
    """Read catalogue files; InputError lists everything that is wrong with them."""
    signatures: dict[str, Signature] = {}
    metrics: list[MetricSignature] = []
    problems: list[Problem] = []
    for file in files:
        parsed = _read(file)
        for entry in parsed.signatures:
            problem = _fault(entry, signatures)
            if problem:
                problems.append(Problem(f"signature {entry.id!r}: {problem}", Location(file)))
            else:
                signatures[entry.id] = _signature(entry, parsed.area)
        metrics.extend(
            MetricSignature(
                **{**entry.model_dump(), "metrics": tuple(entry.metrics), "sources": tuple(entry.sources)}
            )
            for entry in parsed.metric_signatures
        )
    if problems:
        raise InputError.of(problems)
    return Catalogue(signatures=tuple(signatures.values()), metrics=tuple(metrics))


def _read(file: Path) -> _File:
    try:
        data: Any = yaml.load(file.read_text(encoding="utf-8"), LOADER)  # noqa: S506 - a safe loader
        return _File.model_validate(data)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InputError("this catalogue cannot be read", where=Location(file), why=str(error)) from error
    except ValidationError as error:
        raise _invalid(file, error) from error


def _invalid(file: Path, error: ValidationError) -> HarnessError:
    return InputError.of([_problem(file, fault["loc"], fault["msg"]) for fault in error.errors()])


def _problem(file: Path, place: tuple[int | str, ...], message: str) -> Problem:
    if not place:
        return Problem(
            "a catalogue is a mapping with the key `signatures`",
            Location(file),
            fix="see `npu-matrix triage --learn`, which writes one",
        )
    return Problem(f"{'.'.join(map(str, place))}: {message}", Location(file))


def _fault(entry: _Entry, known: dict[str, Signature]) -> str:
    if entry.id in known:
        return "this id is taken"
    try:
        pattern = re.compile(entry.pattern)
    except re.error as error:
        return f"its pattern is no regular expression: {error}"
    if not pattern.search(entry.example):
        return "its pattern does not match its example"
    if UNBOUNDED.search(entry.pattern):
        return "its pattern has an unbounded `.*` or `.+`, slow on long lines: write .{0,300}"
    short = [needle for needle in entry.needles if len(needle.encode()) < SHORTEST_NEEDLE]
    if short:
        return f"the needle {short[0]!r} is shorter than {SHORTEST_NEEDLE} bytes"
    if not any(needle in entry.example for needle in entry.needles):
        return "none of its needles is in its example"
    return ""


def _signature(entry: _Entry, area: str) -> Signature:
    return Signature(
        id=entry.id,
        area=area,
        stage=entry.stage,
        severity=entry.severity,
        role=entry.role,
        evidence=entry.evidence,
        pattern=re.compile(entry.pattern),
        needles=tuple(entry.needles),
        example=entry.example,
        cause=entry.cause.strip(),
        remedy=entry.remedy.strip(),
        affects=entry.affects,
        sources=tuple(entry.sources),
    )
