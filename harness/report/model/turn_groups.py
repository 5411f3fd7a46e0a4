"""What broke and what was fixed, newest first: cells that turned in one run for one cause are one event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.report.model.commit_notes import CommitRange
from harness.report.model.hardware_run import HardwareRun
from harness.report.model.report_inputs import ReportResult
from harness.report.model.report_model import ReportModel, ReportRow
from harness.report.model.turning_points import Turn, TurnCause

WEEK_S = 7 * 86400.0
#: Causes that are no change of an input.
NO_CHANGE = (TurnCause.FLAKY, TurnCause.MACHINE)


@dataclass(frozen=True, kw_only=True)
class TurnGroup:
    """Checks that turned in the same run, with the same changed inputs and for the same reason; or all turns
    of a check with the same inputs.

    turn: the last one of the first cell. rows: the cells. turns: how many turns. still: how many of the cells
    have the new verdict today.
    """

    turn: Turn
    rows: tuple[ReportRow, ...]
    turns: int
    still: int
    commits: tuple[CommitRange, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WeekSummary:
    """How many checks of cells broke, were fixed, and changed without a changed input since a time."""

    broke: int
    fixed: int
    by_chance: int


@dataclass(frozen=True, kw_only=True)
class HardwareLine:
    """A check of a cell and when hardware last ran it; None if it never did."""

    row: ReportRow
    result: ReportResult
    run: HardwareRun


def turn_groups(model: ReportModel) -> tuple[TurnGroup, ...]:
    """The events in the histories of all checks, newest first."""
    found: dict[tuple[object, ...], list[tuple[ReportRow, Turn, bool]]] = defaultdict(list)
    for row in model.rows:
        for result in row.turned:
            for turn in result.turns:
                found[_alike(turn)].append((row, turn, turn is result.turns[-1]))
    groups = [
        TurnGroup(
            turn=max((turn for _row, turn, last in members if last), key=_time, default=members[-1][1]),
            rows=tuple({row.cell.id: row for row, _turn, _last in members}.values()),
            turns=len(members),
            still=sum(last for _row, _turn, last in members),
            commits=model.inputs.commits.of(members[0][1]),
        )
        for members in found.values()
    ]
    order = [model.inputs.run.run_id, *(run.run_id for run in model.inputs.runs)]
    places = {run_id: place for place, run_id in enumerate(order)}
    return tuple(sorted(groups, key=lambda group: places.get(group.turn.after.run_id, len(places))))


def _time(turn: Turn) -> float:
    return turn.after.time


def _alike(turn: Turn) -> tuple[object, ...]:
    if turn.cause in NO_CHANGE:
        return (turn.check, turn.cause, turn.attempts)
    return (
        turn.after.run_id,
        turn.check,
        turn.better,
        turn.cause,
        turn.difference.changes,
        turn.reason,
    )


def summarise_since(groups: Iterable[TurnGroup], since: float) -> WeekSummary:
    """The events since a time, in Unix seconds."""
    recent = [group for group in groups if group.turn.after.time >= since]
    changed = [group for group in recent if group.turn.cause not in NO_CHANGE]
    return WeekSummary(
        broke=_cells(group for group in changed if not group.turn.better),
        fixed=_cells(group for group in changed if group.turn.better),
        by_chance=_cells(recent) - _cells(changed),
    )


def _cells(groups: Iterable[TurnGroup]) -> int:
    return sum(len(group.rows) for group in groups)


def hardware_lines(model: ReportModel) -> Sequence[HardwareLine]:
    """The checks that hardware has run, most recent first."""
    found = [
        HardwareLine(row=row, result=result, run=result.hardware)
        for row in model.rows
        for result in row.on_hardware
        if result.hardware is not None
    ]
    return sorted(found, key=lambda line: -line.run.time)
