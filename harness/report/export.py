"""The model as versioned JSON, and the schema of it."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from harness.report.inputs import CellInput, ResultInput
from harness.report.logs import stored_name
from harness.report.model import ReportModel, Result, Row
from harness.report.streak import stretches

SCHEMA_NAME = "npu-matrix.report"
SCHEMA_VERSION = 1


def report_json(model: ReportModel) -> str:
    """The report as JSON text. Numbers JSON cannot hold become "NaN", "Infinity", "-Infinity"."""
    data = report_data(model)
    # One line per cell: readable with line tools, and the fast encoder does not indent.
    cells = ",\n".join(_dump(cell) for cell in data.pop("cells"))
    return f'{_dump(data)[:-1]},"cells":[\n{cells}\n]}}\n'


def report_data(model: ReportModel) -> dict[str, Any]:
    """The report as plain data, without logs and without paths of this machine."""
    return {
        "schema": {"name": SCHEMA_NAME, "version": SCHEMA_VERSION},
        "generated": plain(model.generated),
        "headline": model.headline,
        "proof": model.proof,
        "complete": model.complete,
        "run": plain(model.run),
        "checks": plain(model.checks),
        "counts": {mark.value: count for mark, count in model.counts.items()},
        "passed_by_evidence": {evidence.value: count for evidence, count in model.passed.items()},
        "planned": model.planned,
        "missing": [{"cell": cell, "check": check} for cell, check in model.missing],
        "attention": plain(model.attention),
        "patterns": plain(model.patterns),
        "since": (
            {
                "run": plain(model.earlier.run_id),
                "started": plain(model.earlier.started),
                "revision": plain(model.earlier.revision),
            }
            if model.earlier
            else None
        ),
        "changes": plain(model.changes),
        "cells": [_row(row) for row in model.rows],
        "strangers": [{"cell": result.cell_id, "check": result.check} for result in model.strangers],
        "excluded": plain(model.excluded),
        "host": plain(model.host),
        "notes": plain(model.notes),
    }


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _row(row: Row) -> dict[str, Any]:
    return {
        **{
            field.name: plain(getattr(row.cell, field.name))
            for field in dataclasses.fields(CellInput)
            if field.name != "exports"
        },
        "exports": [f"exports/{row.slug}/{stored_name(name)}" for name in row.cell.exports],
        "page": f"cells/{row.slug}.html",
        "worst": row.worst.value if row.worst else None,
        "published": plain(row.published),
        "results": [_result(result) for result in row.results.values()],
    }


def _result(result: Result) -> dict[str, Any]:
    left_out = {"log_text", "log_path", "cell_id", "artifacts", "history"}
    facts = {
        field.name: plain(getattr(result.facts, field.name))
        for field in dataclasses.fields(ResultInput)
        if field.name not in left_out
    }
    artifacts = [
        {"name": file.name, "digest": file.digest, "size": file.size} for file in result.facts.artifacts
    ]
    return {
        **facts,
        "artifacts": artifacts,
        "mark": result.mark.value,
        "change": result.change,
        "streak": plain(result.streak),
        "history": plain(stretches(result.facts.history)),
        "missing": result.missing,
        "notes": list(result.notes),
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
