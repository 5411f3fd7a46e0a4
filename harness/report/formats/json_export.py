"""The model as versioned JSON, and the schema of it."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from harness.report.model.logs import stored_name
from harness.report.model.report_inputs import CellInput, ResultInput
from harness.report.model.report_model import ReportModel, ReportResult, ReportRow
from harness.report.model.visible_text import as_bytes

SCHEMA_NAME = "npu-matrix.report"
SCHEMA_VERSION = 1


def report_json(model: ReportModel, by_row: Iterable[bytes] | None = None) -> bytes:
    """The report as JSON. Numbers JSON cannot hold become "NaN", "Infinity", "-Infinity".

    by_row: the line of each cell (`cell_line`), where they are known already.
    """
    # One line per cell: readable with line tools, and the fast encoder does not indent.
    cells = list(by_row if by_row is not None else map(cell_line, model.rows)) or [b""]
    # Joined once: of many cells these are a hundred megabytes.
    cells[0] = _line(_head(model))[:-1] + b',"cells":[\n' + cells[0]
    cells[-1] += b"\n]}\n"
    return b",\n".join(cells)


def cell_line(row: ReportRow) -> bytes:
    """A cell and its results as one line of JSON."""
    return _line(_row(row))


def _line(facts: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_shallow)
    except (ValueError, TypeError):
        return as_bytes(_dump(plain(facts)))
    # Half a character, or a name of nothing known: the careful way.
    return as_bytes(text if text.isprintable() else _dump(plain(facts)))


def _shallow(value: Any) -> Any:
    """What the encoder does not know, one level deep; it comes back for what is inside."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in _fields(type(value))}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(type(value).__name__)


@cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def report_data(model: ReportModel) -> dict[str, Any]:
    """The report as plain data, without logs and without paths of this machine."""
    data: dict[str, Any] = plain({**_head(model), "cells": [_row(row) for row in model.rows]})
    return data


def _head(model: ReportModel) -> dict[str, Any]:
    return {
        "schema": {"name": SCHEMA_NAME, "version": SCHEMA_VERSION},
        "generated": model.generated,
        "headline": model.headline,
        "proof": model.proof,
        "complete": model.complete,
        "run": model.run,
        "checks": model.checks,
        "counts": {mark.value: count for mark, count in model.counts.items()},
        "passed_by_evidence": {evidence.value: count for evidence, count in model.passed.items()},
        "planned": model.planned,
        "missing": [{"cell": cell, "check": check} for cell, check in model.missing],
        "attention": model.attention,
        "patterns": model.patterns,
        "since": (
            {
                "run": model.earlier.run_id,
                "started": model.earlier.started,
                "revision": model.earlier.revision,
            }
            if model.earlier
            else None
        ),
        "changes": model.changes,
        "strangers": [{"cell": result.cell_id, "check": result.check} for result in model.strangers],
        "excluded": model.excluded,
        "host": model.host,
        "notes": model.notes,
    }


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _row(row: ReportRow) -> dict[str, Any]:
    facts = {name: getattr(row.cell, name) for name in _fields(CellInput) if name != "exports"}
    return {
        **facts,
        "exports": [f"exports/{row.slug}/{stored_name(name)}" for name in row.cell.exports],
        "page": f"cells/{row.slug}.html",
        "worst": row.worst,
        "published": row.published,
        "results": [_result(result) for result in row.results.values()],
    }


LEFT_OUT = frozenset({"log_text", "log_path", "cell_id", "artifacts", "history"})
KEPT = tuple(name for name in _fields(ResultInput) if name not in LEFT_OUT)
_kept = attrgetter(*KEPT)


def _result(result: ReportResult) -> dict[str, Any]:
    return {
        **dict(zip(KEPT, _kept(result.facts), strict=True)),
        "artifacts": [
            {"name": file.name, "digest": file.digest, "size": file.size} for file in result.facts.artifacts
        ],
        "mark": result.mark,
        "change": result.change,
        "streak": result.streak,
        "history": list(map(vars, result.past.stretches)),
        "missing": result.missing,
        "notes": result.notes,
    }


def plain(value: Any) -> Any:
    """Dataclasses, enums, mappings and tuples as what JSON knows."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return (
            value
            if math.isfinite(value)
            else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        )
    if isinstance(value, dict | Mapping):
        return {str(plain(name)): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(value) if isinstance(value, PurePath) else value
