from __future__ import annotations

import math
import sqlite3
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_fakes import LeapingClock, make_check, make_task, outcome_of

from harness.check import TaskContext
from harness.errors import InfrastructureError, InputError, InterruptedRunError
from harness.outcome import Evidence, Measured, Outcome, State, Tier
from harness.run.executors.executor import LocalExecutor
from harness.run.jobs.execute import INFRASTRUCTURE, execute
from harness.run.jobs.job import Job, JobHandle, JobSite
from harness.sources.secrets.secret_values import secret_values


@pytest.fixture
def site(tmp_path: Path) -> JobSite:
    return JobSite(
        root=tmp_path / "checkout",
        state=tmp_path / "state",
        cache=tmp_path / "cache",
        environ={"PATH": "/usr/bin:/bin", "INDEX_TOKEN": "s3cr3t-value"},
    )


def measured(**changes: Any) -> Measured:
    return Measured(**{"measurements": {"ok": True}, "evidence": Evidence.STATIC, **changes})


def job(
    run: Callable[[TaskContext], Measured], *, facets: dict[str, Any] | None = None, **changes: Any
) -> Job:
    options = {"tier": Tier.STATIC, **changes}
    inputs = options.pop("inputs", {})
    return Job(
        task=make_task(make_check("probe", options.pop("tier"), run=run, **options), facets=facets),
        inputs=inputs,
        run_id="r1",
    )


def log_of(site: JobSite, outcome: Outcome) -> str:
    assert outcome.log is not None
    return site.artifacts.get(outcome.log).read_text()


def test_a_completed_check(site: JobSite) -> None:
    def run(ctx: TaskContext) -> Measured:
        assert list(ctx.workdir.iterdir()) == []
        (ctx.workdir / "lock.txt").write_text("torch==2.13.0\n")
        ctx.log("resolved")
        return measured(artifacts={"lock": "lock.txt"}, environment={"uv": "1"})

    outcome = execute(job(run, facets={"pins": 1}), site)
    assert outcome.state is State.COMPLETED
    assert outcome.failure is None
    ref = outcome.artifact("lock")
    assert ref is not None
    assert ref.media_type == "text/plain"
    assert site.artifacts.get(ref).read_text() == "torch==2.13.0\n"
    assert log_of(site, outcome).endswith("resolved\n")
    assert (outcome.run_id, outcome.attempt, set(outcome.facets)) == ("r1", 1, {"pins"})
    assert list(site.work.iterdir()) == [], "nothing is left of a completed task"


def test_a_current_folder_that_was_deleted_costs_nothing(
    site: JobSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert execute(job(lambda _ctx: measured()), site).state is State.COMPLETED


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError(5, "s3cr3t-value"), INFRASTRUCTURE), (ValueError("s3cr3t-value"), "ValueError")],
)
@pytest.mark.parametrize("part", ["RunContext", "Masker"])
def test_whoever_waits_gets_an_outcome_also_if_the_program_itself_fails(
    site: JobSite, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str, part: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    if part == "Masker":
        monkeypatch.setattr("harness.run.jobs.execute.Masker.of_host", fails)
    else:
        monkeypatch.setattr("harness.run.jobs.execute.RunContext", fails)
    executor = LocalExecutor(site, jobs=1)
    executor.submit(job(lambda _ctx: measured()))
    (outcome,) = executor.collect(30.0)
    assert (outcome.state, outcome.failure is not None and outcome.failure.kind) == (State.ERROR, kind)
    assert outcome.failure is not None
    assert "test_execute.py" in outcome.failure.message
    assert "s3cr3t" not in outcome.failure.message


def raises(error: BaseException) -> Callable[[TaskContext], Measured]:
    def run(_ctx: TaskContext) -> Measured:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "state", "kind"),
    [
        (InfrastructureError("no network", why="refused", fix="connect"), State.ERROR, "InfrastructureError"),
        (InputError("bad patch"), State.ERROR, "InputError"),
        (OSError(28, "No space left on device"), State.ERROR, "InfrastructureError"),
        (ZeroDivisionError("division"), State.ERROR, "ZeroDivisionError"),
        (SystemExit(3), State.ERROR, "SystemExit"),
        (MemoryError(), State.ERROR, "MemoryError"),
        (RecursionError("deep"), State.ERROR, "RecursionError"),
        (KeyboardInterrupt(), State.INTERRUPTED, "Interrupted"),
        (InterruptedRunError("stopped"), State.INTERRUPTED, "Interrupted"),
    ],
)
def test_whatever_a_check_raises_becomes_an_outcome(
    site: JobSite, error: BaseException, state: State, kind: str
) -> None:
    outcome = execute(job(raises(error)), site)
    assert outcome.state is state
    assert outcome.failure is not None
    assert outcome.failure.kind == kind
    assert outcome.measurements == {}


def test_a_defect_of_a_check_has_its_traceback_in_the_log_and_its_folder_stays(site: JobSite) -> None:
    outcome = execute(job(raises(ZeroDivisionError("division"))), site)
    assert "Traceback" in log_of(site, outcome)
    assert len([path for path in site.work.iterdir() if path.is_dir()]) == 1


def test_the_fix_of_an_error_reaches_the_user(site: JobSite) -> None:
    outcome = execute(job(raises(InfrastructureError("no network", why="refused", fix="connect"))), site)
    assert outcome.failure is not None
    assert (outcome.failure.message, outcome.failure.fix) == ("no network (refused)", "connect")
    assert "Traceback" not in log_of(site, outcome)


@pytest.mark.parametrize(
    ("code", "fix"),
    [(28, "free space on that disk"), (30, "make the folder writable"), (13, "--cache"), (32, "see the log")],
)
def test_what_a_disk_refuses_says_what_to_do(site: JobSite, code: int, fix: str) -> None:
    outcome = execute(job(raises(OSError(code, "refused"))), site)
    assert outcome.failure is not None
    assert fix in outcome.failure.fix


def test_a_library_that_finds_a_full_disk_is_an_infrastructure_error(site: JobSite) -> None:
    error = sqlite3.OperationalError("database or disk is full")
    outcome = execute(job(raises(error)), site)
    assert outcome.failure is not None
    assert outcome.failure.kind == INFRASTRUCTURE
    assert "free space on that disk" in outcome.failure.fix


@pytest.mark.parametrize(
    ("device", "claimed", "allowed"),
    [
        ("sim", Evidence.SIMULATED, True),
        ("sim", Evidence.HARDWARE, False),
        ("cpu", Evidence.CPU, True),
        ("cpu", Evidence.SIMULATED, False),
        ("npu", Evidence.HARDWARE, True),
        (None, Evidence.STATIC, True),
        (None, Evidence.CPU, True),
        (None, Evidence.HARDWARE, False),
        ("something-new", Evidence.HARDWARE, False),
    ],
)
def test_evidence_is_never_promoted(
    site: JobSite, device: str | None, claimed: Evidence, allowed: bool
) -> None:
    facets = {"device": {"kind": device}} if device else {}
    outcome = execute(job(lambda _ctx: measured(evidence=claimed), facets=facets, tier=Tier.NUMERICS), site)
    assert (outcome.state is State.COMPLETED) is allowed
    if not allowed:
        assert outcome.evidence.rank < claimed.rank
        assert outcome.failure is not None
        assert "evidence" in outcome.failure.message


@pytest.mark.parametrize(
    ("tier", "device", "evidence"),
    [
        (Tier.STATIC, "sim", Evidence.STATIC),
        (Tier.BUILD, "sim", Evidence.CPU),
        (Tier.NUMERICS, "npu", Evidence.CPU),
        (Tier.NUMERICS, "cpu", Evidence.CPU),
    ],
)
def test_a_task_that_handed_nothing_back_is_evidence_of_no_device(
    site: JobSite, tier: Tier, device: str, evidence: Evidence
) -> None:
    outcome = execute(job(raises(ValueError()), facets={"device": {"kind": device}}, tier=tier), site)
    assert outcome.evidence is evidence


def test_measurements_that_are_no_json_are_an_error_not_a_crash(site: JobSite) -> None:
    for value in (math.nan, object(), b"bytes"):
        outcome = execute(job(lambda _ctx, v=value: measured(measurements={"x": v})), site)
        assert outcome.state is State.ERROR


@pytest.mark.parametrize("file", ["absent", "../outside", "/etc/hostname", "link", "."])
def test_an_artifact_is_a_file_in_the_tasks_own_folder(site: JobSite, file: str) -> None:
    def run(ctx: TaskContext) -> Measured:
        (ctx.workdir / "link").symlink_to("/etc/hostname")
        (ctx.workdir.parent / "outside").write_text("x")
        return measured(artifacts={"a": file})

    outcome = execute(job(run), site)
    assert outcome.state is State.ERROR
    assert outcome.artifacts == ()


def test_a_task_that_runs_out_of_time(site: JobSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LeapingClock(tmp_path / "asleep").install(monkeypatch)
    code = f"import pathlib, time; pathlib.Path({str(tmp_path / 'asleep')!r}).touch(); time.sleep(600)"

    def run(ctx: TaskContext) -> Measured:
        ctx.command([sys.executable, "-c", code])
        raise AssertionError("not reached")

    outcome = execute(job(run, timeout_s=500.0), site)
    assert outcome.state is State.TIMEOUT
    assert outcome.failure is not None
    assert "limit of 500 s" in outcome.failure.message
    assert "time.sleep(600)" in log_of(site, outcome)


def test_a_program_that_runs_out_of_its_own_time_is_the_checks_business(site: JobSite) -> None:
    def run(ctx: TaskContext) -> Measured:
        completed = ctx.command([sys.executable, "-c", "import time; time.sleep(600)"], timeout=0.5)
        return measured(measurements={"ok": completed.timed_out})

    assert execute(job(run), site).measurements == {"ok": True}


def test_programs_are_logged_without_secrets(site: JobSite) -> None:
    def run(ctx: TaskContext) -> Measured:
        completed = ctx.command(
            [sys.executable, "-c", "print('\\x1b[31ms3cr3t-value\\x1b[0m https://a:b@h/x')"]
        )
        return measured(measurements={"ok": True, "tail": completed.tail})

    outcome = execute(job(run), site)
    assert outcome.measurements["tail"] == "*** https://***@h/x\n"
    log = log_of(site, outcome)
    assert "s3cr3t" not in log
    assert "\x1b" not in log


def test_names_of_cells_that_a_job_of_a_ci_service_has_in_a_variable_are_no_secrets(site: JobSite) -> None:
    cells = ("verl-0-9-0-d2e0b61347f7", "verl-0-8-0-87615c0bc83e")
    environ = {**site.environ, "CELLS": " ".join(cells), "CELL": cells[0], "OTHER": "verl-0-7-1-4f7be5e8e382"}

    def run(ctx: TaskContext) -> Measured:
        ctx.log(f"cells: {' '.join(cells)}; not of this task: verl-0-7-1-4f7be5e8e382")
        raise ValueError(cells[0])

    outcome = execute(replace(job(run), cells=cells), replace(site, environ=environ))
    assert f"cells: {' '.join(cells)}; not of this task: ***" in log_of(site, outcome)
    assert outcome.failure is not None
    assert cells[0] in outcome.failure.message


def test_artifacts_of_needs_are_found_and_a_gone_one_is_infrastructure(site: JobSite) -> None:
    ref = site.artifacts.put(b"locked", "lock.txt")
    resolved = outcome_of(make_task(make_check("resolve")), artifacts=(ref,))

    def reads(check: str, name: str) -> Outcome:
        return execute(
            job(
                lambda ctx: measured(measurements={"text": ctx.artifact(check, name).read_text()}),
                inputs={"resolve": resolved},
            ),
            site,
        )

    assert reads("resolve", "lock.txt").measurements == {"text": "locked"}
    for check, name in (("resolve", "absent"), ("patches", "lock.txt")):
        failure = reads(check, name).failure
        assert failure is not None
        assert failure.kind == "InfrastructureError"
    site.artifacts.get(ref).unlink()
    assert reads("resolve", "lock.txt").state is State.ERROR


def test_a_module_in_a_cell_runs_as_the_cell_says(site: JobSite) -> None:
    built = outcome_of(make_task(make_check("environment")))
    asked = []

    def cell(outcome: Outcome, module: str, args: Any, *, on_cpu: bool) -> tuple[list[str], dict[str, str]]:
        asked.append((outcome, module, tuple(args), on_cpu))
        return [sys.executable, "-c", "import os; print(os.environ['A'], os.environ['B'])"], {
            "A": "1",
            "B": "1",
        }

    def run(ctx: TaskContext) -> Measured:
        return measured(measurements={"tail": ctx.in_cell("harness.x", "--y", env={"B": "2"}).tail})

    inside = job(run, inputs={"environment": built})
    assert execute(inside, replace(site, cell=cell)).measurements == {"tail": "1 2\n"}
    assert asked == [(built, "harness.x", ("--y",), False)]
    assert execute(inside, site).state is State.ERROR


def test_folders_are_kept_on_request_and_cleared_for_the_next_attempt(site: JobSite) -> None:
    def run(ctx: TaskContext) -> Measured:
        (ctx.workdir / "file").write_text("x")
        return measured()

    first = job(run)
    execute(first, replace(site, keep=True))
    (kept,) = site.work.iterdir()
    assert (kept / "file").exists()
    execute(replace(first, attempt=2), replace(site, keep=True))
    (kept,) = site.work.iterdir()
    assert kept.name.endswith("-2")


def test_a_state_folder_that_cannot_be_written_is_an_outcome_too(site: JobSite, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = execute(job(lambda _ctx: measured()), replace(site, state=tmp_path / "file"))
    assert outcome.state is State.ERROR
    assert outcome.log is None
    assert outcome.failure is not None
    assert outcome.failure.fix


def test_an_outcome_whose_log_cannot_be_kept_is_no_result(site: JobSite) -> None:
    def run(ctx: TaskContext) -> Measured:
        ctx.workdir.with_suffix(".log").unlink()
        return measured()

    assert execute(job(run), site).state is State.ERROR


def drain(executor: LocalExecutor, count: int) -> list[Outcome]:
    """The next `count` outcomes; fewer only if a job hangs."""
    finished: list[Outcome] = []
    for _ in range(1800):
        finished += executor.collect(0.05)
        if len(finished) >= count:
            break
    return finished


def numbered(n: int, run: Callable[[TaskContext], Measured], **changes: Any) -> Job:
    return job(run, facets={"n": n}, **changes)


def test_jobs_run_at_the_same_time_and_each_comes_out_once(site: JobSite) -> None:
    together = threading.Barrier(3, timeout=90)

    def run(_ctx: TaskContext) -> Measured:
        together.wait()
        return measured()

    executor = LocalExecutor(site, jobs=3)
    for n in range(3):
        executor.submit(numbered(n, run))
    finished = drain(executor, 3)
    assert {one.state for one in finished} == {State.COMPLETED}
    assert len({one.key for one in finished}) == 3
    assert executor.collect(0.0) == []
    executor.close()


def test_cancel_stops_programs_and_says_interrupted(site: JobSite) -> None:
    def run(ctx: TaskContext) -> Measured:
        ctx.command([sys.executable, "-c", "import time; print('deep in work', flush=True); time.sleep(300)"])
        return measured()

    executor = LocalExecutor(site, jobs=2)
    for n in range(2):
        executor.submit(numbered(n, run))
    for _ in range(1800):
        if list(executor.last_lines().values()) == ["deep in work"] * 2:
            break
        executor.collect(0.05)
    executor.cancel()
    assert [one.state for one in drain(executor, 2)] == [State.INTERRUPTED] * 2


def test_a_check_that_hangs_in_its_own_code_is_given_up(site: JobSite) -> None:
    hangs, go_on, threads = threading.Event(), threading.Event(), []

    def run(_ctx: TaskContext) -> Measured:
        threads.append(threading.current_thread())
        hangs.set() or go_on.wait(600)
        return measured()

    executor = LocalExecutor(site, jobs=1, patience=0.1)
    executor.submit(numbered(0, run, timeout_s=0.1))
    assert hangs.wait(90)
    (finished,) = drain(executor, 1)
    assert finished.state is State.TIMEOUT
    assert finished.failure is not None
    assert finished.failure.kind == "Hang"
    assert "go_on.wait(600)" in log_of(site, finished), "the log ends with where it hangs"
    go_on.set()
    threads[0].join(90)
    assert not threads[0].is_alive()
    assert executor.collect(0.0) == [], "what comes back later is not told twice"
    executor.submit(numbered(1, lambda _ctx: measured()))
    assert drain(executor, 1)[0].state is State.COMPLETED


def test_a_check_can_ask_whether_it_is_cancelled_through_any_program(site: JobSite) -> None:
    handle = JobHandle()
    handle.cancelled.set()
    outcome = execute(
        job(lambda ctx: measured(measurements={"x": ctx.command(["true"]).returncode})), site, handle
    )
    assert outcome.state is State.INTERRUPTED


@pytest.mark.parametrize(("error", "times"), [(None, 1), (ValueError("s3cr3t-value"), 2)])
def test_credentials_are_read_at_the_start_of_a_task_and_again_for_a_failure(
    site: JobSite, monkeypatch: pytest.MonkeyPatch, error: Exception | None, times: int
) -> None:
    read = []

    def counted(environ: Mapping[str, str], public: str = "") -> frozenset[str]:
        read.append(public)
        return secret_values(environ, public)

    def run(_ctx: TaskContext) -> Measured:
        if error:
            raise error
        return measured()

    monkeypatch.setattr("harness.sources.secrets.masking.secret_values", counted)
    outcome = execute(job(run), site)
    assert len(read) == times
    assert outcome.failure is None or "s3cr3t" not in outcome.failure.message
