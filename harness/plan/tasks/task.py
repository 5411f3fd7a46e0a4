"""What planning yields: tasks by key, and for every cell which task answers which check, or why none does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.check import Check
from harness.errors import InputError
from harness.outcome import Status, Tier

SCHEMA = {"name": "npu-matrix.plan", "version": 1}
# A cell with one of these in a tier does not spend a dearer one. Inconclusive and unsupported are no failure.
STOPPING = frozenset({Status.FAIL, Status.ERROR, Status.NOT_RUN})


@dataclass(frozen=True, kw_only=True)
class Task:
    """A check with its facet values. Its identity is `key`: equal keys are one piece of work."""

    key: str
    check: Check
    facets: Mapping[str, Any]
    facet_digests: Mapping[str, str]
    code_digest: str
    needs: tuple[str, ...] = ()
    expected_s: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Why an entry has no task here; the status is never a green one."""

    status: Status
    reason: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One (cell, check): the key of the task that answers it, or the reason there is none."""

    cell_id: str
    check: str
    tier: Tier
    question: str
    key: str = ""
    skip: Skip | None = None


@dataclass(frozen=True, kw_only=True)
class CellFacts:
    """What a report says of a cell; provenance values read `file:line:column`."""

    id: str
    title: str
    stack: str
    device: str
    axes: Mapping[str, str]
    provenance: Mapping[str, str]
    findings: tuple[Mapping[str, str], ...] = ()
    recipe: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A profile of the matrix, ready to run: every cell, every entry, every distinct task."""

    profile: str
    matrix_digest: str
    cells: tuple[CellFacts, ...]
    entries: tuple[Entry, ...]
    tasks: Mapping[str, Task]
    notices: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON, schema `npu-matrix.plan`; order is that of the plan."""
        return {
            "schema": SCHEMA,
            "profile": self.profile,
            "matrix_digest": self.matrix_digest,
            "cells": [_cell_json(cell) for cell in self.cells],
            "entries": [_entry_json(entry) for entry in self.entries],
            "tasks": [_task_json(task) for task in self.tasks.values()],
            "notices": list(self.notices),
        }


def plan_from_json(data: Mapping[str, Any], checks: Mapping[str, Check]) -> Plan:
    """A stored plan with the checks of today; tasks of checks that are gone are left out and noticed.

    InputError when it is no plan this program can read.
    """
    try:
        return _plan(data, checks)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            "the plan that is stored with this run cannot be read",
            why=f"{type(error).__name__}: {error}; another version of npu-matrix may have written it",
            fix="name another run, or run again: outcomes of unchanged tasks are reused",
        ) from error


def _plan(data: Mapping[str, Any], checks: Mapping[str, Check]) -> Plan:
    gone = sorted({task["check"] for task in data["tasks"]} - set(checks))
    return Plan(
        profile=data["profile"],
        matrix_digest=data["matrix_digest"],
        cells=tuple(CellFacts(**{**cell, "findings": tuple(cell["findings"])}) for cell in data["cells"]),
        entries=tuple(_entry(entry) for entry in data["entries"]),
        tasks={
            task["key"]: _task(task, checks[task["check"]])
            for task in data["tasks"]
            if task["check"] in checks
        },
        notices=(*data["notices"], *(f"the check {name!r} of this run no longer exists" for name in gone)),
    )


def _entry(data: Mapping[str, Any]) -> Entry:
    skip = data["skip"]
    return Entry(
        cell_id=data["cell"],
        check=data["check"],
        tier=Tier(data["tier"]),
        question=data["question"],
        key=data["key"],
        skip=Skip(status=Status(skip["status"]), reason=skip["reason"]) if skip else None,
    )


def _task(data: Mapping[str, Any], check: Check) -> Task:
    return Task(
        key=data["key"],
        check=check,
        facets=data["facets"],
        facet_digests=data["facet_digests"],
        code_digest=data["code_digest"],
        needs=tuple(data["needs"]),
        expected_s=data["expected_s"],
    )


def _cell_json(cell: CellFacts) -> dict[str, Any]:
    return {
        "id": cell.id,
        "title": cell.title,
        "stack": cell.stack,
        "device": cell.device,
        "axes": dict(cell.axes),
        "provenance": dict(cell.provenance),
        "findings": [dict(finding) for finding in cell.findings],
        "recipe": cell.recipe,
    }


def _entry_json(entry: Entry) -> dict[str, Any]:
    skip = {"status": entry.skip.status.value, "reason": entry.skip.reason} if entry.skip else None
    return {
        "cell": entry.cell_id,
        "check": entry.check,
        "tier": entry.tier.value,
        "question": entry.question,
        "key": entry.key,
        "skip": skip,
    }


def _task_json(task: Task) -> dict[str, Any]:
    return {
        "key": task.key,
        "check": task.check.name,
        "tier": task.check.tier.value,
        "facets": dict(task.facets),
        "facet_digests": dict(task.facet_digests),
        "code_digest": task.code_digest,
        "params": dict(task.check.params),
        "needs": list(task.needs),
        "expected_s": task.expected_s,
    }
