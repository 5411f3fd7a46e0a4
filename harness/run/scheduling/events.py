"""The events of a run, for observers such as the live board or a JSON log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.outcome import Judgement, Outcome, Status, Tier
from harness.serialisation import as_object, dumps


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """The base class of events. `at` is in Unix seconds."""

    at: float


@dataclass(frozen=True, kw_only=True)
class RunStarted(RunEvent):
    """The run begins. reused, to_run: tier -> number of tasks; tasks of `to_run` may still be skipped."""

    run_id: str
    entries: int
    reused: Mapping[Tier, int]
    to_run: Mapping[Tier, int]
    expected_s: float


@dataclass(frozen=True, kw_only=True)
class TaskEvent(RunEvent):
    """The base class of events about a task. cells: the cells that share the task."""

    key: str
    check: str
    tier: Tier
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TaskStarted(TaskEvent):
    """A task was submitted to the executor. why: the reason for a rerun, or ""."""

    attempt: int
    expected_s: float
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskFinished(TaskEvent):
    """The outcome of a task was recorded. `retried`: the task will run again."""

    outcome: Outcome
    judgement: Judgement
    retried: bool = False


@dataclass(frozen=True, kw_only=True)
class EntryWithoutOutcome(RunEvent):
    """An entry gets no outcome: it is blocked or skipped, or the run was stopped."""

    cell_id: str
    check: str
    tier: Tier
    status: Status
    reason: str


@dataclass(frozen=True, kw_only=True)
class Progress(RunEvent):
    """Sent regularly. last_lines: key of a running task -> last line of its log.

    left: number of tasks that are running or will run if none fails. left_s: their estimated duration in
    seconds with all slots in use.
    """

    last_lines: Mapping[str, str]
    left: int
    left_s: float


@dataclass(frozen=True, kw_only=True)
class RunMessage(RunEvent):
    """A message for the user: the run is stopping or waiting, or a notice of the ledger."""

    text: str


@dataclass(frozen=True, kw_only=True)
class RunFinished(RunEvent):
    """The run has ended. `left`: number of entries without an outcome."""

    run_id: str
    executed: int
    reused: int
    left: int
    seconds: float
    interrupted: bool


Observer = Callable[[RunEvent], None]

#: The names in JSON of events whose class was renamed.
JSON_KINDS = {"EntryWithoutOutcome": "EntryLeft", "RunMessage": "Told"}


def event_line(event: RunEvent) -> str:
    """An event as one line of JSON. Of an outcome, only its key, state and evidence are written."""
    kind = type(event).__name__
    data = {"event": JSON_KINDS.get(kind, kind), **as_object(event)}
    if isinstance(event, TaskFinished):
        outcome, judgement = event.outcome, event.judgement
        data["outcome"] = {"key": outcome.key, "state": outcome.state, "evidence": outcome.evidence}
        data["judgement"] = {"status": judgement.status, "reasons": judgement.reasons}
    return dumps(data, sort_keys=True) + "\n"
