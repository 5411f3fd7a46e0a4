from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console
from run_fakes import FakeClock, FakeExecutor, entry, judge, make_check, make_plan, make_task, outcome_of

from harness.ledger.store import Ledger
from harness.outcome import State, Tier
from harness.run.scheduling.board import Board, console_observer, duration, json_lines
from harness.run.scheduling.events import Observer, Progress, RunEvent
from harness.run.scheduling.scheduler import run_plan

resolve = make_task(make_check("resolve"))
bad = make_task(make_check("lint"))
build = make_task(make_check("environment", Tier.BUILD), needs=[resolve])
PLAN = make_plan([entry("cell-[red]a", one) for one in (resolve, bad, build)], [resolve, bad, build])


def record(folder: Path, observer: Observer) -> None:
    answers = {
        resolve.key: [lambda task: outcome_of(task, state=State.ERROR)],
        bad.key: [lambda task: outcome_of(task, ok=False)],
    }
    with Ledger.open(folder) as ledger:
        run_plan(PLAN, ledger, FakeExecutor(1, answers), judge, observer=observer, clock=FakeClock())


def test_without_a_terminal_there_is_a_line_per_event(tmp_path: Path) -> None:
    stream = io.StringIO()
    with console_observer(Console(file=stream, width=40), {}) as observer:
        record(tmp_path, observer)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("run ")
    assert "3 entries, 0 tasks reused, 3 to run" in lines[0]
    assert any(line.startswith("retry    static") for line in lines)
    assert any(line.startswith("fail     static") and line.endswith("it is not ok") for line in lines)
    assert any(line.startswith("blocked  build") and "cell-[red]a" in line for line in lines)
    assert lines[-1].split(" ", 2)[2].startswith("finished in")
    assert "\x1b" not in stream.getvalue()


def test_ci_gets_lines_even_on_a_terminal(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    with console_observer(console, {"CI": "true"}) as observer:
        record(tmp_path, observer)
    assert "\x1b[" not in stream.getvalue()


def test_a_terminal_gets_a_board_that_leaves_failures_behind(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    with console_observer(console, {}) as observer:
        assert isinstance(observer, Board)
        record(tmp_path, observer)
    assert "it is not ok" in stream.getvalue()


def test_the_board_shows_counts_and_what_runs(tmp_path: Path) -> None:
    shown: list[str] = []
    board = Board(Console(file=io.StringIO(), width=100))

    def observe(event: RunEvent) -> None:
        board(event)
        if isinstance(event, Progress):
            console = Console(file=io.StringIO(), width=100)
            console.print(board.render())
            assert isinstance(console.file, io.StringIO)
            shown.append(console.file.getvalue())

    record(tmp_path, observe)
    assert "cell-[red]a" in "".join(shown) or "tasks left" in shown[0]
    assert "to run" in shown[0]
    assert "fail" in shown[-1]
    assert "0 tasks left" in shown[-1]


def test_events_as_json_lines(tmp_path: Path) -> None:
    stream = io.StringIO()
    record(tmp_path, json_lines(stream))
    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "RunStarted"
    assert kinds[-1] == "RunFinished"
    finished = [event for event in events if event["event"] == "TaskFinished"]
    assert [one["retried"] for one in finished].count(True) == 1
    assert {one["judgement"]["status"] for one in finished if not one["retried"]} == {"pass", "fail"}
    assert events[0]["to_run"] == {"static": 2, "build": 1}


def test_durations_as_people_read_them() -> None:
    assert [duration(s) for s in (0.04, 12.3, 185, 7800)] == ["0.0 s", "12 s", "3 min 5 s", "2 h 10 min"]
