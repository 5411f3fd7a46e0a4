"""The executor protocol, and the executor that runs jobs in threads of this process.

An executor on other machines (Ray, say) fits the same protocol. A `Job` is data and travels by pickle: the
check's functions are module-level and go by name. It makes its own `Site` there (checkout, state folder,
cache), calls `execute` like this one does, and sends the outcome back together with the files its
artifacts and log name, which it puts into the store here before `collect` hands the outcome over. Losing a
node is an outcome in `State.ERROR` whose failure is an InfrastructureError: the scheduler tries that again.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from harness.outcome import Outcome, State
from harness.run.jobs.execute import abandoned_job_outcome, execute
from harness.run.jobs.job import Job, JobHandle, JobSite
from harness.run.programs.process import CONTAINED_GRACE_SECONDS, HARD_SECONDS

# How long a job may go on after it was told to stop before it is given up.
PATIENCE_SECONDS = CONTAINED_GRACE_SECONDS + HARD_SECONDS + 5.0


class Executor(Protocol):
    """Runs jobs somewhere. Used from one thread."""

    @property
    def slots(self) -> int:
        """How many jobs run at a time; more than that are never submitted."""

    def submit(self, job: Job) -> None:
        """Start a job; returns at once."""

    def collect(self, timeout: float) -> list[Outcome]:
        """The outcomes of jobs that ended, each once; waits up to `timeout` seconds for the first."""

    def last_lines(self) -> Mapping[str, str]:
        """Key of a running job -> the last line of its log, where that is known."""

    def cancel(self) -> None:
        """Stop what runs; every job still comes out of `collect`, as INTERRUPTED if it was stopped."""

    def close(self) -> None:
        """Abandon running jobs and release all resources."""


@dataclass(kw_only=True)
class _Running:
    job: Job
    handle: JobHandle = field(default_factory=JobHandle)
    started: float = field(default_factory=time.time)
    give_up_at: float
    thread: threading.Thread | None = None


class LocalExecutor:
    """Jobs in threads of this process; what they run as programs can be stopped, what they compute cannot.

    A job that does not come back `patience` seconds after its time limit, or after `cancel`, is given up: its
    outcome says so, and its thread is left behind.
    """

    def __init__(self, site: JobSite, jobs: int, patience: float = PATIENCE_SECONDS) -> None:
        self.site = site
        self._jobs = max(1, jobs)
        self._patience = patience
        self._running: dict[str, _Running] = {}
        self._done: queue.SimpleQueue[tuple[_Running, Outcome]] = queue.SimpleQueue()

    @property
    def slots(self) -> int:
        """Threads at a time."""
        return self._jobs

    def submit(self, job: Job) -> None:
        """Run the job in a thread of its own."""
        limit = job.task.check.timeout_s + self._patience
        running = _Running(job=job, give_up_at=time.monotonic() + limit)
        self._running[job.task.key] = running
        # A daemon: a check that hangs in its own code must not keep the program from ending.
        name = job.task.check.name
        running.thread = threading.Thread(target=self._work, args=(running,), name=name, daemon=True)
        running.thread.start()

    def collect(self, timeout: float) -> list[Outcome]:
        """The outcomes of jobs that ended, and of those given up."""
        finished = []
        wait = timeout
        while True:
            try:
                running, outcome = self._done.get(timeout=wait) if wait > 0 else self._done.get_nowait()
            except queue.Empty:
                break
            wait = 0.0
            # An abandoned job may still end; its outcome has been reported already.
            if self._running.get(running.job.task.key) is running:
                del self._running[running.job.task.key]
                finished.append(outcome)
        return finished + self._given_up()

    def last_lines(self) -> Mapping[str, str]:
        """Of the jobs in the threads."""
        return {key: running.handle.last_line for key, running in self._running.items()}

    def cancel(self) -> None:
        """Stop the programs that the jobs run."""
        for running in self._running.values():
            running.handle.cancelled.set()
            running.give_up_at = min(running.give_up_at, time.monotonic() + self._patience)

    def close(self) -> None:
        """Stop what runs, without waiting for it."""
        self.cancel()
        self._running.clear()

    def _work(self, running: _Running) -> None:
        self._done.put((running, execute(running.job, self.site, running.handle)))

    def _given_up(self) -> list[Outcome]:
        now = time.monotonic()
        for running in self._running.values():
            if running.handle.waits and not running.handle.cancelled.is_set():
                running.give_up_at = now + running.job.task.check.timeout_s + self._patience
        late = [running for running in self._running.values() if now >= running.give_up_at]
        given_up = []
        for running in late:
            stopped = running.handle.cancelled.is_set()
            running.handle.cancelled.set()
            del self._running[running.job.task.key]
            limit = running.job.task.check.timeout_s
            outcome = abandoned_job_outcome(
                running.job,
                self.site,
                running.handle,
                started=running.started,
                state=State.INTERRUPTED if stopped else State.TIMEOUT,
                message="did not stop when told to" if stopped else f"hangs beyond its limit of {limit:g} s",
                stack=_stack(running.thread),
            )
            given_up.append(outcome)
        return given_up


def _stack(thread: threading.Thread | None) -> str:
    """Where a thread is now."""
    frames = sys._current_frames()  # noqa: SLF001 - documented, and the only way to see another thread's stack
    frame = frames.get(thread.ident or 0) if thread else None
    return "".join(traceback.format_stack(frame)) if frame else "nowhere: its thread has ended"
