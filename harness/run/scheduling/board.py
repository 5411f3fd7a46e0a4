"""Shows the progress of a run: a live board on a terminal, otherwise one line per event."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from harness.outcome import Status, Tier
from harness.run.scheduling.events import (
    EntryWithoutOutcome,
    Observer,
    Progress,
    RunEvent,
    RunFinished,
    RunMessage,
    RunStarted,
    TaskFinished,
    TaskStarted,
    event_line,
)

COLOURS: Mapping[str, str] = {
    Status.PASS: "green",
    Status.FAIL: "red",
    Status.ERROR: "magenta",
    Status.BLOCKED: "yellow",
    Status.INCONCLUSIVE: "yellow",
    Status.UNSUPPORTED: "blue",
    Status.STALE: "yellow",
    Status.CLAIMED: "dim",
    Status.NOT_RUN: "dim",
}
BOARD_ROWS = 12


@contextlib.contextmanager
def console_observer(console: Console, environ: Mapping[str, str]) -> Iterator[Observer]:
    """A live board if the console is a terminal and `CI` is not set, otherwise plain lines."""
    if not console.is_terminal or environ.get("CI", "").lower() not in ("", "0", "false"):
        yield partial(_print_event, console)
        return
    board = Board(console)
    with Live(console=console, refresh_per_second=4, transient=True, get_renderable=board.render):
        yield board


def json_lines(stream: IO[str]) -> Observer:
    """An observer that writes each event as a line of JSON."""

    def write(event: RunEvent) -> None:
        stream.write(event_line(event))
        stream.flush()

    return write


def _print_event(console: Console, event: RunEvent) -> None:
    if text := describe_event(event):
        console.print(Text(text), soft_wrap=True)


def describe_event(event: RunEvent) -> str:
    """One line about an event, or "" if the event is not printed."""
    match event:
        case RunStarted():
            run, reused = sum(event.to_run.values()), sum(event.reused.values())
            about = f", about {duration(event.expected_s)}" if run else ""
            return f"run {event.run_id}: {event.entries} entries, {reused} tasks reused, {run} to run{about}"
        case TaskStarted():
            why = f" (again: {event.why})" if event.why else ""
            again = f" attempt {event.attempt}" if event.attempt > 1 else ""
            return f"start    {event.tier.value:<11} {event.check} {_cells(event.cells)}{again}{why}"
        case TaskFinished():
            status = "retry" if event.retried else event.judgement.status.value
            reasons = event.judgement.reasons
            reason = "" if event.judgement.status is Status.PASS or not reasons else f": {reasons[0]}"
            seconds = duration(event.outcome.seconds)
            head = f"{status:<8} {event.tier.value:<11} {event.check} {_cells(event.cells)}"
            kind = f" [{event.outcome.evidence.value}]" if event.judgement.status.has_evidence else ""
            return f"{head}{kind} in {seconds}{reason}"
        case EntryWithoutOutcome(status=Status.BLOCKED):
            return f"blocked  {event.tier.value:<11} {event.check} {event.cell_id}: {event.reason}"
        case RunMessage():
            return event.text
        case RunFinished():
            how = "interrupted" if event.interrupted else "finished"
            counts = f"{event.executed} executed, {event.reused} reused, {event.left} entries without outcome"
            return f"run {event.run_id} {how} in {duration(event.seconds)}: {counts}"
    return ""


@dataclass(kw_only=True)
class _Row:
    started: TaskStarted
    line: str = ""


class Board:
    """A table of counts by tier, and the running tasks with the last lines of their logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._counts: dict[Tier, Counter[str]] = {tier: Counter() for tier in Tier}
        self._running: dict[str, _Row] = {}
        self._now = 0.0
        self._left = 0
        self._left_s = 0.0

    def __call__(self, event: RunEvent) -> None:
        """Update the board. Failures and messages are also printed above it."""
        self._now = event.at
        match event:
            case RunStarted():
                for tier, count in event.reused.items():
                    self._counts[tier]["reused"] = count
                for tier, count in event.to_run.items():
                    self._counts[tier]["to run"] = count
                self._left, self._left_s = sum(event.to_run.values()), event.expected_s
            case TaskStarted():
                self._running[event.key] = _Row(started=event)
            case TaskFinished():
                self._running.pop(event.key, None)
                if not event.retried:
                    self._counts[event.tier][event.judgement.status.value] += 1
                    self._counts[event.tier]["to run"] -= 1
            case Progress():
                self._left, self._left_s = event.left, event.left_s
                for key, line in event.last_lines.items():
                    if key in self._running:
                        self._running[key].line = line
        if _is_printed_above(event):
            _print_event(self._console, event)

    def render(self) -> RenderableType:
        """The current board."""
        head = Text(f"{self._left} tasks left", style="bold")
        if self._left:
            head.append(f", about {duration(self._left_s)}", style="dim")
        return Group(head, self._tiers(), self._tasks())

    def _tiers(self) -> Table:
        names = ["reused", "to run", *(status.value for status in Status)]
        used = [name for name in names if any(counts[name] for counts in self._counts.values())]
        table = Table(box=None, pad_edge=False)
        table.add_column("tier")
        for name in used:
            table.add_column(name, justify="right", style=COLOURS.get(name, ""))
        for tier, counts in self._counts.items():
            table.add_row(tier.value, *(str(max(0, counts[name]) or "") for name in used))
        return table

    def _tasks(self) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="ellipsis", style="dim")
        rows = list(self._running.values())
        for row in rows[:BOARD_ROWS]:
            elapsed = max(0.0, self._now - row.started.at)
            name = f"{row.started.check} {_cells(row.started.cells)}"
            table.add_row(Text(name), duration(elapsed), Text(row.line))
        if len(rows) > BOARD_ROWS:
            table.add_row(f"and {len(rows) - BOARD_ROWS} more", "", "")
        return table


def duration(seconds: float) -> str:
    """A readable duration, given seconds: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _is_printed_above(event: RunEvent) -> bool:
    if isinstance(event, TaskFinished):
        return event.retried or event.judgement.status is not Status.PASS
    return isinstance(event, RunMessage)


def _cells(cells: tuple[str, ...]) -> str:
    if not cells:
        return ""
    return cells[0] if len(cells) == 1 else f"{cells[0]} and {len(cells) - 1} more"
