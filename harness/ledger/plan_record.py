"""A plan as data: what the ledger stores with a run and `plan --json` prints (schema `npu-matrix.plan`)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.outcome import Status, Tier
from harness.serialisation import json_form


@dataclass(frozen=True, kw_only=True)
class SchemaVersion:
    """The name and version of a JSON schema."""

    name: str
    version: int


PLAN_SCHEMA = SchemaVersion(name="npu-matrix.plan", version=1)


@dataclass(frozen=True, kw_only=True)
class CellFinding:
    """A known inconsistency in what is published about the versions of a cell, and where it is documented."""

    what: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class CellFacts:
    """The facts about a cell that a report shows. `provenance`: axis -> `file:line:column` that sets it."""

    id: str
    title: str = ""
    stack: str = ""
    device: str = ""
    axes: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[CellFinding, ...] = ()
    recipe: str = ""

    @property
    def name(self) -> str:
        """Its title, or its id if it has none or one of blanks."""
        return self.title.strip() or self.id


class SkipCause(str, enum.Enum):
    """What leaves a check of a cell out: this host, the profile, or the check itself for such cells."""

    HOST = "host"
    PROFILE = "profile"
    CHECK = "check"
    UNRECORDED = ""


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Why an entry has no task on this host; the status is never `pass`.

    key: of the task that a host or a profile which includes the check runs; "" if the check does not apply,
    and in plans of earlier versions.
    """

    status: Status
    reason: str
    cause: SkipCause = SkipCause.UNRECORDED
    key: str = ""


@json_form(cell_id="cell")
@dataclass(frozen=True, kw_only=True)
class PlanEntry:
    """One check of one cell: the key of its task, or the reason why there is none."""

    cell_id: str
    check: str
    tier: Tier
    question: str
    key: str = ""
    skip: Skip | None = None


@dataclass(frozen=True, kw_only=True)
class TaskRecord:
    """A task without its check's functions: the inputs of its key, with their digests."""

    key: str
    check: str
    tier: Tier
    facets: Mapping[str, Any]
    facet_digests: Mapping[str, str]
    code_digest: str
    params: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    expected_s: float = 1.0


@dataclass(frozen=True, kw_only=True)
class CodeRecord:
    """The modules in the code parts of a plan's keys.

    modules: (module or data file, digest of its reachable definitions). reached: digest of a code part ->
    indices of its modules in `modules`. Both are empty in plans of earlier versions.
    """

    modules: tuple[tuple[str, str], ...] = ()
    reached: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def modules_of(self, code_digest: str) -> dict[str, str]:
        """Module -> digest of its definitions that the code part reaches; empty if that is not recorded."""
        return dict(self.modules[index] for index in self.reached.get(code_digest, ()))

    def changed_modules(self, code_digest: str, later: CodeRecord, later_code_digest: str) -> tuple[str, ...]:
        """The modules in which a code part of this plan differs from a code part of a later plan."""
        before, after = self.modules_of(code_digest), later.modules_of(later_code_digest)
        if not before or not after:
            return ()
        return tuple(sorted({name for name, _digest in before.items() ^ after.items()}))


@dataclass(frozen=True, kw_only=True)
class PlannedExpectation:
    """An expected failure of matrix.yaml when a plan was made, and the planned cells that it covers.

    until: a date (ISO 8601), or an axis and a version specifier; "" without an end.
    """

    id: str
    check: str
    state: str
    because: tuple[str, ...] = ()
    reason: str
    source: str
    owner: str = ""
    until: str = ""
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PlanRecord:
    """A plan as it was computed; it stays readable after its checks have changed or were removed.

    selection: the options that selected cells or checks of the profile; "" for the whole profile. expected:
    the expected failures of that time, so that a history can tell which failures were expected; None in
    plans of versions that did not store them.
    """

    schema: SchemaVersion = PLAN_SCHEMA
    profile: str = ""
    selection: str = ""
    matrix_digest: str = ""
    cells: tuple[CellFacts, ...] = ()
    entries: tuple[PlanEntry, ...] = ()
    tasks: tuple[TaskRecord, ...] = ()
    notices: tuple[str, ...] = ()
    code: CodeRecord = CodeRecord()
    expected: tuple[PlannedExpectation, ...] | None = None

    @property
    def entries_by_name(self) -> dict[tuple[str, str], PlanEntry]:
        """(cell, check) -> entry."""
        return {(entry.cell_id, entry.check): entry for entry in self.entries}

    @property
    def tasks_by_key(self) -> dict[str, TaskRecord]:
        """Key -> task."""
        return {task.key: task for task in self.tasks}

    @property
    def tasks_by_name(self) -> dict[tuple[str, str], TaskRecord]:
        """(cell, check) -> task, for the entries that have one."""
        tasks = self.tasks_by_key
        return {name: tasks[entry.key] for name, entry in self.entries_by_name.items() if entry.key in tasks}
