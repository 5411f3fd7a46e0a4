"""The executor protocol, and the executor that runs jobs in threads of this process.

An executor for other machines (`ray_executor`) pickles jobs; the functions of checks are module-level, so
pickle refers to them by name. On the node it creates a `JobSite`, calls `execute`, and sends the outcome back
together with its artifacts and log, which it stores here before `collect` returns the outcome. If a node is
lost, the outcome of its jobs is `State.ERROR` with an infrastructure failure, and the scheduler retries them.
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
from harness.plan.tasks.task import Task
from harness.run.jobs.execute import abandoned_job_outcome, execute
from harness.run.jobs.job import Job, JobHandle, JobSite
from harness.run.programs.process import CONTAINED_GRACE_SECONDS, HARD_SECONDS

# How long a job may continue after it was asked to stop, before it is abandoned.
PATIENCE_SECONDS = CONTAINED_GRACE_SECONDS + HARD_SECONDS + 5.0


class Executor(Protocol):
    """Runs jobs. Used from one thread."""

    @property
    def slots(self) -> int:
        """How many jobs can run at a time."""

    def has_room(self, task: Task, /) -> bool:
        """Whether a job of the task could start now or soon. The scheduler submits no others."""

    def submit(self, job: Job) -> None:
        """Start a job; returns at once."""

    def collect(self, timeout: float) -> list[Outcome]:
        """The outcomes of ended jobs, each once. Waits up to `timeout` seconds for the first."""

    def last_lines(self) -> Mapping[str, str]:
        """Key of a running job -> last line of its log, if the executor knows it."""

    def cancel(self) -> None:
        """Stop all running jobs. `collect` still returns their outcomes, with `State.INTERRUPTED`."""

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
    """Runs jobs in threads of this process. It can stop the programs of a job, but not its Python code.

    A job that has not ended `patience` seconds after its time limit or after `cancel` is abandoned: its
    outcome says so, and its thread continues.
    """

    def __init__(self, site: JobSite, jobs: int, patience: float = PATIENCE_SECONDS) -> None:
        self.site = site
        self._jobs = max(1, jobs)
        self._patience = patience
        self._running: dict[str, _Running] = {}
        self._done: queue.SimpleQueue[tuple[_Running, Outcome]] = queue.SimpleQueue()

    @property
    def slots(self) -> int:
        """The number of threads."""
        return self._jobs

    def has_room(self, _task: Task, /) -> bool:
        """Whether a thread is free, for any task."""
        return len(self._running) < self._jobs

    def submit(self, job: Job) -> None:
        """Run the job in a new thread."""
        limit = job.task.check.timeout_s + self._patience
        running = _Running(job=job, give_up_at=time.monotonic() + limit)
        self._running[job.task.key] = running
        # A daemon thread, so that a check that hangs does not prevent this process from ending.
        name = job.task.check.name
        running.thread = threading.Thread(target=self._work, args=(running,), name=name, daemon=True)
        running.thread.start()

    def collect(self, timeout: float) -> list[Outcome]:
        """The outcomes of ended and of abandoned jobs."""
        finished = []
        wait = timeout
        while True:
            try:
                running, outcome = self._done.get(timeout=wait) if wait > 0 else self._done.get_nowait()
            except queue.Empty:
                break
            wait = 0.0
            # An abandoned job may still end, after its outcome was returned.
            if self._running.get(running.job.task.key) is running:
                del self._running[running.job.task.key]
                finished.append(outcome)
        return finished + self._abandon_late()

    def last_lines(self) -> Mapping[str, str]:
        """Key -> last log line, for all running jobs."""
        return {key: running.handle.last_line for key, running in self._running.items()}

    def cancel(self) -> None:
        """Stop the programs that the jobs run."""
        for running in self._running.values():
            running.handle.cancelled.set()
            running.give_up_at = min(running.give_up_at, time.monotonic() + self._patience)

    def close(self) -> None:
        """Stop the programs of running jobs, without waiting for the jobs."""
        self.cancel()
        self._running.clear()

    def _work(self, running: _Running) -> None:
        self._done.put((running, execute(running.job, self.site, running.handle)))

    def _abandon_late(self) -> list[Outcome]:
        """Stop waiting for jobs that are too late; returns their outcomes."""
        now = time.monotonic()
        for running in self._running.values():
            if running.handle.waits and not running.handle.cancelled.is_set():
                running.give_up_at = now + running.job.task.check.timeout_s + self._patience
        late = [running for running in self._running.values() if now >= running.give_up_at]
        abandoned = []
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
                message="did not stop when asked to" if stopped else f"hung beyond its limit of {limit:g} s",
                stack=_stack(running.thread),
            )
            abandoned.append(outcome)
        return abandoned


def _stack(thread: threading.Thread | None) -> str:
    """The current stack of a thread."""
    frames = sys._current_frames()  # noqa: SLF001 - documented, and the only way to see another thread's stack
    frame = frames.get(thread.ident or 0) if thread else None
    return "".join(traceback.format_stack(frame)) if frame else "its thread has ended"
