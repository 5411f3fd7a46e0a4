"""What happens during a run, as values: for a board, a log, or another program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.outcome import Judgement, Outcome, Status, Tier
from harness.serialisation import as_object, dumps


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """Something that happened; `at` is Unix seconds."""

    at: float


@dataclass(frozen=True, kw_only=True)
class RunStarted(RunEvent):
    """The run begins: entries planned, tasks whose outcome is reused, tasks that are going to run at most."""

    run_id: str
    entries: int
    reused: Mapping[Tier, int]
    to_run: Mapping[Tier, int]
    expected_s: float


@dataclass(frozen=True, kw_only=True)
class TaskStarted(RunEvent):
    """A task was handed to the executor; `cells` are those it answers for."""

    key: str
    check: str
    tier: Tier
    cells: tuple[str, ...]
    attempt: int
    expected_s: float
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskFinished(RunEvent):
    """A task came back and is recorded; `retried` when it is going to run once more."""

    key: str
    check: str
    tier: Tier
    cells: tuple[str, ...]
    outcome: Outcome
    judgement: Judgement
    retried: bool = False


@dataclass(frozen=True, kw_only=True)
class EntryWithoutOutcome(RunEvent):
    """An entry is not going to have an outcome: blocked, skipped, or the run was stopped."""

    cell_id: str
    check: str
    tier: Tier
    status: Status
    reason: str


@dataclass(frozen=True, kw_only=True)
class Progress(RunEvent):
    """Time passes: the last log line of each running key, and what is left if nothing else fails.

    `left_s` is how long that takes on all slots, going by the history of each check.
    """

    last_lines: Mapping[str, str]
    left: int
    left_s: float


@dataclass(frozen=True, kw_only=True)
class RunMessage(RunEvent):
    """Something to tell the user: stopping, waiting, a notice of the ledger."""

    text: str


@dataclass(frozen=True, kw_only=True)
class RunFinished(RunEvent):
    """The run is over."""

    run_id: str
    executed: int
    reused: int
    left: int
    seconds: float
    interrupted: bool


Observer = Callable[[RunEvent], None]


#: Events whose class was renamed keep their name in JSON.
JSON_KINDS = {"EntryWithoutOutcome": "EntryLeft", "RunMessage": "Told"}


def event_line(event: RunEvent) -> str:
    """An event as one line of JSON with its kind; an outcome appears by its key, state and evidence only."""
    kind = type(event).__name__
    data = {"event": JSON_KINDS.get(kind, kind), **as_object(event)}
    if isinstance(event, TaskFinished):
        found, judged = event.outcome, event.judgement
        data["outcome"] = {"key": found.key, "state": found.state, "evidence": found.evidence}
        data["judgement"] = {"status": judged.status, "reasons": judged.reasons}
    return dumps(data, sort_keys=True) + "\n"
