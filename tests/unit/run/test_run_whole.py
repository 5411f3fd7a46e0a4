"""Whole runs in separate processes that are killed, interrupted and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run_fakes import entry, judge, make_check, make_plan, make_task
from small_disk import small_disk

from harness.check import TaskContext
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Measured, State
from harness.run.executors.executor import LocalExecutor
from harness.run.jobs.job import JobSite
from harness.run.scheduling.scheduler import run_plan

DRIVER = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from run_fakes import entry, judge, make_check, make_plan, make_task, unfinished
from harness.check import TaskContext
from harness.ledger.store import Ledger
from harness.outcome import Evidence, Measured
from harness.run.executors.executor import LocalExecutor
from harness.run.programs.interruption import Interruption
from harness.run.jobs.job import JobSite
from harness.run.scheduling.run_lock import run_lock
from harness.run.scheduling.scheduler import run_plan

folder, count = Path(sys.argv[1]), int(sys.argv[3])

def sleep(ctx):
    code = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(float(sys.argv[2]))"
    pid = folder / "pids" / str(ctx.facets["n"])
    done = ctx.command([sys.executable, "-c", code, str(pid), str(ctx.facets["s"])])
    return Measured(measurements={"ok": done.returncode == 0}, evidence=Evidence.STATIC)

(folder / "pids").mkdir(parents=True, exist_ok=True)
check = make_check("sleep", run=sleep)
tasks = [make_task(check, facets={"n": n, "s": 0.01 if n < 3 else float(sys.argv[4])}) for n in range(count)]
plan = make_plan([entry(f"cell{n}", task) for n, task in enumerate(tasks)], tasks)
site = JobSite(root=folder, state=folder / "state", cache=folder / "cache", environ=dict(os.environ))
with Interruption() as stopped, run_lock(site.state, command=sys.argv, wait=True, stopped=stopped):
    with Ledger.open(site.state) as ledger:
        result = run_plan(plan, ledger, LocalExecutor(site, 2), judge, stopped=stopped,
                          observer=lambda event: print(type(event).__name__, flush=True))
        code = 130 if result.interrupted else 0
        ledger.finish_run(result.run_id, code)
print(json.dumps({"executed": result.executed, "reused": result.reused, "left": len(unfinished(result))}))
sys.exit(code)
"""


Start = Callable[[Path, float], "subprocess.Popen[str]"]


@pytest.fixture
def driver() -> Iterator[Start]:
    """Starts runs of five tasks, of which the last two take the given number of seconds; ends them after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
        here = str(Path(__file__).parent)
        command = [sys.executable, "-c", DRIVER, str(folder), here, "5", str(seconds)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        with process:
            process.kill()


def until_long_ones_run(folder: Path) -> list[int]:
    files = [folder / "pids" / str(n) for n in (3, 4)]
    for _ in range(3000):
        if all(file.exists() and file.read_text() for file in files):
            return [int(file.read_text()) for file in files]
        time.sleep(0.02)
    raise AssertionError("the long tasks never started")


def gone(pid: int) -> bool:
    for _ in range(3000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def finish(process: subprocess.Popen[str]) -> dict[str, int]:
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    summary: dict[str, int] = json.loads(said.splitlines()[-1])
    return summary


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run: needs /proc")


def test_kill_9_leaves_no_program_and_the_next_run_resumes(tmp_path: Path, driver: Start) -> None:
    process = driver(tmp_path, 300)
    pids = until_long_ones_run(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert all(gone(pid) for pid in pids)
    with Ledger.open(tmp_path / "state") as ledger:
        recorded = len(ledger.history())
        run = ledger.latest_run()
        assert run is not None
        assert run.exit_code is None, "a run without an end was killed"
    # The duration of the long tasks is part of their keys, so only the three short tasks are reused.
    assert finish(driver(tmp_path, 0.01)) == {"executed": 5 - recorded, "reused": recorded, "left": 0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_programs_records_and_exits_130(
    tmp_path: Path, driver: Start, number: int
) -> None:
    process = driver(tmp_path, 300)
    pids = until_long_ones_run(tmp_path)
    process.send_signal(number)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert json.loads(said.splitlines()[-1])["left"] == 2
    assert all(gone(pid) for pid in pids)
    with Ledger.open(tmp_path / "state") as ledger:
        states = [one.state for one in ledger.history()]
        run = ledger.latest_run()
    assert sorted(states) == sorted([State.COMPLETED] * 3 + [State.INTERRUPTED] * 2)
    assert run is not None
    assert run.exit_code == 130


def test_a_second_interrupt_does_not_wait_for_a_check_that_hangs(tmp_path: Path) -> None:
    hanging = DRIVER.replace("def sleep(ctx):\n", "def sleep(ctx):\n    import time; time.sleep(300)\n")
    assert hanging != DRIVER
    here = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", hanging, str(tmp_path), here, "2", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line == "Progress\n":
                    process.send_signal(signal.SIGINT)
                if line == "RunMessage\n":
                    process.send_signal(signal.SIGINT)
                    break
            assert process.wait(timeout=100) in (-signal.SIGINT, 130)
        finally:
            process.kill()


def test_two_runs_at_once_share_the_work(tmp_path: Path, driver: Start) -> None:
    both = [driver(tmp_path, 0.01) for _ in range(2)]
    summaries = [json.loads(process.communicate(timeout=100)[0].splitlines()[-1]) for process in both]
    assert sorted(summary["executed"] for summary in summaries) == [0, 5]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", mebibytes=4) as folder:
        yield folder


@pytest.mark.parametrize("way", ["file", "program", "log", "artifact"])
def test_a_task_that_fills_the_disk_is_an_error_and_the_others_go_on(tiny_disk: Path, way: str) -> None:
    size = 0

    def fill(ctx: TaskContext) -> Measured:
        data = os.urandom(64 << 10)
        for n in range(size >> 16):
            if way == "file":
                (ctx.workdir / str(n)).write_bytes(data)
            elif way == "log":
                ctx.log(data.hex())
        if way == "program":
            code = "import os, sys\nwith open('big', 'wb') as f:\n  for n in range(int(sys.argv[1])): f.write(os.urandom(1024))"
            done = ctx.command([sys.executable, "-c", code, str(size >> 10)])
            return Measured(measurements={"ok": done.returncode == 0}, evidence=Evidence.STATIC)
        if way == "artifact":
            (ctx.workdir / "big").write_bytes(os.urandom(size // 2))
            return Measured(measurements={"ok": True}, evidence=Evidence.STATIC, artifacts={"big": "big"})
        return Measured(measurements={"ok": True}, evidence=Evidence.STATIC)

    small = [make_task(make_check(f"small{n}", expected_s=9 - n)) for n in (0, 8)]
    big = make_task(make_check("big", run=fill, expected_s=5))
    tasks = [small[0], big, small[1]]
    plan = make_plan([entry(one.check.name, one) for one in tasks], tasks)
    site = JobSite(root=tiny_disk, state=tiny_disk, cache=tiny_disk, environ=dict(os.environ))
    with Ledger.open(tiny_disk) as ledger:
        size = 6 << 20
        result = run_plan(plan, ledger, LocalExecutor(site, 1), judge)
        expected = "fail" if way == "program" else "error"
        assert [one.judgement.status.value for one in result.tasks.values()] == ["pass", expected, "pass"]
        size = 1 << 16
        if way != "program":
            assert run_plan(plan, ledger, LocalExecutor(site, 1), judge).executed == 1
    with Ledger.open(tiny_disk) as ledger:
        assert ledger.notices == ()


def test_a_program_that_ends_badly_is_the_outcome_of_its_cell_alone(tmp_path: Path) -> None:
    def crash(ctx: TaskContext) -> Measured:
        done = ctx.command([sys.executable, "-c", f"import os; os.kill(os.getpid(), {ctx.facets['signal']})"])
        return Measured(measurements={"ok": done.returncode == 0}, evidence=Evidence.STATIC)

    check = make_check("crash", run=crash)
    tasks = [make_task(check, facets={"signal": number}) for number in (0, int(signal.SIGSEGV))]
    plan = make_plan([entry(f"cell{n}", task) for n, task in enumerate(tasks)], tasks)
    site = JobSite(root=tmp_path, state=tmp_path, cache=tmp_path, environ=dict(os.environ))
    with Ledger.open(tmp_path) as ledger:
        result = run_plan(plan, ledger, LocalExecutor(site, 1), judge)
    assert [one.judgement.status.value for one in result.tasks.values()] == ["pass", "fail"]
