"""All a running check may touch: its folder, its log, programs, and the inside of its cell."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.builds.engines.container_command import MEMORY_VARIABLE, parse_size
from harness.builds.ownership.temporary_folders import (
    make_temporary_folder,
    remove_orphaned_folders,
    remove_temporary_folder,
)
from harness.check import Completed
from harness.devices.cards.card_leases import FOLDER_VARIABLE, CardLeases
from harness.devices.cards.device_nodes import visible_devices
from harness.errors import InfrastructureError, InterruptedRunError, Location
from harness.outcome import Outcome
from harness.run.jobs.job import Job, JobHandle, JobSite
from harness.run.programs.process import (
    CONTAINED_GRACE_SECONDS,
    GRACE_SECONDS,
    run_program,
    scrubbed_environment,
)
from harness.run.programs.scrub import Scrubber
from harness.run.programs.task_log import TaskLog

ENVIRONMENT = "environment"
KEY_CHARACTERS = 16
# As harness.builds.engines.container_run has them: variables of the command inside, and the exit code of a
# failed engine.
CELL_VARIABLE = "NPU_MATRIX_CELL__"
EXIT_ENGINE_FAILED = 125
MIN_FREE_BYTES = 1 << 20
# Names of a cell's temporary folders, short: they become part of the names of sockets.
RAY_FOLDER, TEMPORARY_FOLDER = "r", "t"


class TaskTimeoutError(Exception):
    """The task's own time ran out."""


class RunContext:
    """`harness.check.TaskContext` for real: one job on one site. Close it to end the log."""

    def __init__(self, job: Job, site: JobSite, handle: JobHandle) -> None:
        self.job = job
        self.site = site
        self.handle = handle
        self._deadline = time.monotonic() + job.task.check.timeout_s
        self._cards: dict[str, str] = {}
        self._scratch: Path | None = None
        self.workdir = _fresh_folder(site.work, job)
        self._scrub = Scrubber(site.environ)
        self.task_log = TaskLog(self.workdir.with_suffix(".log"), self._scrub, site.log_cap)

    def begin_with_cards(self, cards: Sequence[int]) -> None:
        """The task has these cards, and its time starts: what it starts sees no others."""
        self._deadline = time.monotonic() + self.job.task.check.timeout_s
        self.log(f"on card {', '.join(map(str, cards))}")
        # Inside the cell cards count from 0, and are leased among the cell's own processes only.
        self._cards = {
            "ASCEND_RT_VISIBLE_DEVICES": visible_devices(cards, self.site.dev),
            FOLDER_VARIABLE: str(self.workdir / "leases"),
        }

    @property
    def facets(self) -> Mapping[str, Any]:
        """Facet name -> JSON value."""
        return self.job.task.facets

    @property
    def params(self) -> Mapping[str, Any]:
        """The check's parameters."""
        return self.job.task.check.params

    @property
    def inputs(self) -> Mapping[str, Outcome]:
        """Check name -> outcome of each needed check."""
        return self.job.inputs

    @property
    def root(self) -> Path:
        """The checkout."""
        return self.site.root

    @property
    def cache(self) -> Path:
        """The folder shared by all tasks."""
        self.site.cache.mkdir(parents=True, exist_ok=True)
        return self.site.cache

    def log(self, text: str) -> None:
        """Append to the log."""
        self.task_log.write(text)

    def artifact(self, check: str, name: str) -> Path:
        """The stored file; InfrastructureError when the needed check has none of that name, or it is gone."""
        outcome = self._input(check)
        ref = outcome.artifact(name)
        if ref is None:
            known = ", ".join(repr(one.name) for one in outcome.artifacts) or "none"
            raise InfrastructureError(
                f"{check!r} has no artifact {name!r}",
                why=f"it has {known}",
                fix="run it again: its outcome may be of an older version (`npu-matrix run --rerun`)",
            )
        return self.site.artifacts.get(ref)

    def command(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Run a program within `timeout` seconds and within what is left of the task's own time.

        TaskTimeoutError when the task's time is up, InterruptedRunError when the run is being stopped.
        """
        return self._run(argv, env=env, cwd=cwd, timeout=timeout)

    def _run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
        signal_number: int = signal.SIGTERM,
        memory_bytes: int = 0,
    ) -> Completed:
        self._check_stopped()
        contained = any(name.startswith(CELL_VARIABLE) for name in env or {})
        left = self._deadline - time.monotonic()
        self.log("$ " + shlex.join(argv))
        completed = run_program(
            argv,
            env=scrubbed_environment(
                {**self.site.environ, **self._cards},
                {**(env or {}), **(self._container_labels() if contained else {})},
            ),
            cwd=cwd or self.workdir,
            write=self.log,
            timeout=left if timeout is None else min(timeout, left),
            stopped=self.handle.cancelled.is_set,
            signal_number=signal_number,
            # It still needs what it started, a container service for example.
            alone=contained,
            grace=CONTAINED_GRACE_SECONDS if contained else GRACE_SECONDS,
            memory_bytes=memory_bytes,
        )
        self._check_stopped()
        if contained and completed.returncode == EXIT_ENGINE_FAILED:
            raise InfrastructureError(
                "the container engine failed",
                why=completed.tail[-500:].strip(),
                fix="see the log, then run again",
            )
        return replace(completed, tail=self._scrub(completed.tail))

    def _container_labels(self) -> dict[str, str]:
        """What a container is labelled with."""
        task = self.job.task
        labels = {"RUN": self.job.run_id, "TASK": task.check.name, "KEY": task.key}
        return {f"NPU_MATRIX_{name}": value for name, value in labels.items()}

    def in_cell(
        self,
        module: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Completed:
        """Run a module inside the cell that the check `environment` made.

        When its time is up each of its Python processes prints where it is. InfrastructureError when somebody
        else killed it: the kernel for want of memory, or its memory limit.
        """
        if self.site.cell is None:
            raise InfrastructureError(
                "cells cannot be entered here",
                why="this executor was made without a way into cells",
                fix="run the plan with `npu-matrix run`",
            )
        argv, added = self.site.cell(self._input(ENVIRONMENT), module, args)
        # A container's program keeps its variables apart from those of what it runs.
        prefix = CELL_VARIABLE if any(name.startswith(CELL_VARIABLE) for name in added) else ""
        own = {prefix + name: value for name, value in {**self._cards, **(env or {})}.items()}
        if prefix:
            completed = self._run(argv, env={**added, **own}, timeout=timeout)
        else:
            completed = self._run(
                argv,
                env={"PYTHONFAULTHANDLER": "1", **self._temporary(), **added, **own},
                timeout=timeout,
                signal_number=signal.SIGABRT,
                memory_bytes=parse_size(self.site.environ.get(MEMORY_VARIABLE, "0"), MEMORY_VARIABLE),
            )
        if completed.returncode == -signal.SIGKILL and not completed.timed_out:
            raise external_kill_error(completed.tail)
        return completed

    def _temporary(self) -> dict[str, str]:
        """Where programs of the cell, and a Ray that they start, keep temporary files: no other task's.

        Not in the task's folder, whose name is long. It says whose it is, so that what a killed run leaves
        goes with the next one. Cards stay leased in the folder that is common to all.
        """
        if self._scratch is None:
            # Those of killed runs go before new ones come.
            remove_orphaned_folders()
            self._scratch = make_temporary_folder()
            for name in (RAY_FOLDER, TEMPORARY_FOLDER):
                (self._scratch / name).mkdir()
        return {
            "RAY_TMPDIR": str(self._scratch / RAY_FOLDER),
            "TMPDIR": str(self._scratch / TEMPORARY_FOLDER),
            FOLDER_VARIABLE: str(CardLeases.of_host(self.site.environ).folder),
        }

    def close(self, *, completed: bool) -> None:
        """End the log; remove the folder of a completed task, unless folders are kept.

        On a full disk it goes in any case: room for the outcome is worth more than a look at the folder.
        """
        if self._scratch is not None:
            with contextlib.suppress(OSError):
                remove_temporary_folder(self._scratch)
        full = shutil.disk_usage(self.workdir.parent).free < MIN_FREE_BYTES
        if full or (completed and not self.site.keep):
            shutil.rmtree(self.workdir, ignore_errors=True)
        self.task_log.close()

    def _input(self, check: str) -> Outcome:
        try:
            return self.job.inputs[check]
        except KeyError:
            raise InfrastructureError(
                f"{self.job.task.check.name!r} asks for {check!r}, which it does not need",
                why=f"its declared needs are {', '.join(self.job.task.check.needs) or 'none'}",
                fix=f"declare {check!r} among the needs of this check",
            ) from None

    def _check_stopped(self) -> None:
        if self.handle.cancelled.is_set():
            raise InterruptedRunError("the run was stopped", fix="run the same command again: it resumes")
        if time.monotonic() >= self._deadline:
            raise TaskTimeoutError


def external_kill_error(tail: str) -> InfrastructureError:
    """A program of a cell that was killed by none of us; `tail` is the end of its output."""
    message = next((line for line in reversed(tail.splitlines()) if "for its memory limit" in line), "")
    if message:
        return InfrastructureError(
            "the cell ran out of the memory it was given",
            why=message.removeprefix("npu-matrix: "),
            fix=f"give it more with {MEMORY_VARIABLE}, or a smaller recipe",
        )
    return InfrastructureError(
        "a program of the cell was killed from outside",
        why="SIGKILL, and not by npu-matrix: most often the kernel, for want of memory",
        fix="see `dmesg | grep -i oom`; free memory, or run fewer tasks at a time (--jobs)",
    )


def _fresh_folder(work: Path, job: Job) -> Path:
    """An empty folder of this attempt's own; those of earlier attempts, which nobody reads any more, go."""
    name = job.task.key[:KEY_CHARACTERS]
    folder = work / f"{name}-{job.attempt}"
    try:
        for old in (*work.glob(f"{name}-*/"), folder):
            if old.is_dir():
                shutil.rmtree(old)
        folder.mkdir(parents=True)
    except OSError as error:
        raise InfrastructureError(
            "cannot make a working folder",
            where=Location(error.filename or folder),
            why=error.strerror or str(error),
            fix="free space on this disk or make the state folder writable, then run again",
        ) from error
    return folder
