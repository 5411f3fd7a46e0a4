"""Runs as the ledger stores them, and the validated runs of another ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.ledger.outcome_record import is_printable_time
from harness.ledger.plan_record import PlanRecord
from harness.outcome import Status
from harness.serialisation import load

#: The columns that `read_run` expects.
RUN_COLUMNS = "run_id, started, finished, exit_code, argv, host"


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run. `finished` and `exit_code` are None while it is running, and if it was killed.

    `plan` is empty if the stored plan is in another format.
    """

    run_id: str
    started: float
    finished: float | None
    exit_code: int | None
    argv: tuple[str, ...]
    host: Mapping[str, object]
    plan: PlanRecord


@dataclass(frozen=True, kw_only=True)
class Disposition:
    """Why a planned check of a cell has no outcome: it was skipped or blocked, or the run was stopped."""

    cell_id: str
    check: str
    key: str
    status: Status
    reason: str


def read_plan(body: str) -> PlanRecord | None:
    """A plan from its JSON text, or None if the text is damaged or not in this format."""
    try:
        return load(PlanRecord, body)
    except ValueError:
        return None


def read_run(row: Sequence[Any], plan: PlanRecord) -> RunRecord | None:
    """The run in a row of `RUN_COLUMNS`, or None if a column does not have its type."""
    run_id, started, finished, exit_code, argv, host = row
    valid_times = is_printable_time(started) and (finished is None or is_printable_time(finished))
    if not isinstance(run_id, str) or not valid_times or not isinstance(exit_code, int | None):
        return None
    try:
        return RunRecord(
            run_id=run_id,
            started=started,
            finished=finished,
            exit_code=exit_code,
            argv=load(tuple[str, ...], str(argv)),
            host=load(dict[str, object], str(host)),
            plan=plan,
        )
    except ValueError:
        return None
