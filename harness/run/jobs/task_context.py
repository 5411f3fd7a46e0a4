"""The interface through which a running check uses its folder, its log, programs, and its cell."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.builds.ownership.temporary_folders import (
    make_temporary_folder,
    remove_orphaned_folders,
    remove_temporary_folder,
)
from harness.cell_program.host_addresses import read_hosts
from harness.check import Completed
from harness.devices.cards.card_leases import FOLDER_VARIABLE, CardLeases
from harness.devices.cards.device_nodes import visible_devices
from harness.devices.sim.refusals.permissive_calls import PermissiveCalls, read_permissive_calls
from harness.devices.sim.start.sim_environment import REPORT_VARIABLE, SOC_VARIABLE
from harness.errors import InfrastructureError, InterruptedRunError, Location
from harness.outcome import Outcome
from harness.run.jobs.job import Job, JobHandle, JobSite
from harness.run.jobs.task_cards import leased_cards
from harness.run.programs.process import (
    CONTAINED_GRACE_SECONDS,
    GRACE_SECONDS,
    run_program,
    scrubbed_environment,
)
from harness.run.programs.scrub import Scrubber
from harness.run.programs.task_log import TaskLog
from harness.settings import MEMORY_VARIABLE, parse_size
from harness.sources.secrets.masking import Masker

ENVIRONMENT = "environment"
KEY_CHARACTERS = 16
# `harness.builds.engines.container_run` defines these two as well: the prefix of variables for the program in
# the container, and its exit code if the container engine failed.
CELL_VARIABLE = "NPU_MATRIX_CELL__"
EXIT_ENGINE_FAILED = 125
MIN_FREE_BYTES = 1 << 20
# Short names, because the length of a socket's path is limited, and Ray creates sockets in these folders.
RAY_FOLDER, TEMPORARY_FOLDER = "r", "t"
SIMULATED_REPORT = "simulated-device.jsonl"


class TaskTimeoutError(Exception):
    """The task exceeded its time limit."""


class RunContext:
    """The `harness.check.TaskContext` of a job. Close it to end the log."""

    def __init__(self, job: Job, site: JobSite, handle: JobHandle) -> None:
        self.job = job
        self.site = site
        self.handle = handle
        self._deadline = time.monotonic() + job.task.check.timeout_s
        self._cards: dict[str, str] = {}
        self._scratch: Path | None = None
        self.workdir = _new_workdir(site.work, job)
        self.masker = Masker.of_host({**os.environ, **site.environ}, job.public_text)
        self._scrub = Scrubber(self.masker)
        self.task_log = TaskLog(self.workdir.with_suffix(".log"), self._scrub, site.log_cap)

    @contextlib.contextmanager
    def cards(self) -> Iterator[None]:
        """Lease the cards of the task, and let its programs see only these, while the `with` block runs.

        Without effect if the task has its cards or does not run on real ones. Its time limit does not include
        the time for which it waits for them.
        """
        if self._cards:
            yield
            return
        began = time.monotonic()
        with leased_cards(self.job.task, self.site, self.handle, self.log) as cards:
            self._deadline += time.monotonic() - began
            if cards:
                self._cards = {
                    "ASCEND_RT_VISIBLE_DEVICES": visible_devices(cards, self.site.dev),
                    # In the cell, cards are numbered from 0, so its processes need other leases.
                    FOLDER_VARIABLE: str(self.workdir / "leases"),
                }
            try:
                yield
            finally:
                self._cards = {}

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
        """The stored file; InfrastructureError if the input has no such artifact, or the file was deleted."""
        outcome = self._input(check)
        ref = outcome.artifact(name)
        if ref is None:
            names = ", ".join(repr(artifact.name) for artifact in outcome.artifacts) or "none"
            raise InfrastructureError(
                f"{check!r} has no artifact {name!r}",
                why=f"its artifacts: {names}",
                fix=f"run {check!r} again: an older version may have stored its outcome "
                "(`npu-matrix run --rerun`)",
            )
        return self.site.artifacts.get(ref)

    def command(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
        signal_number: int = signal.SIGTERM,
        memory_bytes: int = 0,
        in_cell: bool = False,
    ) -> Completed:
        """Run a program for at most `timeout` seconds, and at most until the task's time limit.

        signal_number: the signal that stops it. memory_bytes: limit for all its processes, 0 for none.
        in_cell: without the user's settings of package indexes.
        TaskTimeoutError after the task's time limit, InterruptedRunError if the run is being stopped.
        """
        self._check_stopped()
        contained = any(name.startswith(CELL_VARIABLE) for name in env or {})
        remaining = self._deadline - time.monotonic()
        self.log("$ " + shlex.join(argv))
        completed = run_program(
            argv,
            env=scrubbed_environment(
                {**self.site.environ, **self._cards},
                {**(env or {}), **(self._container_labels() if contained else {})},
                in_cell=in_cell,
            ),
            cwd=cwd or self.workdir,
            write=self.log,
            timeout=remaining if timeout is None else min(timeout, remaining),
            stopped=self.handle.cancelled.is_set,
            signal_number=signal_number,
            # To remove the container, the program needs the processes that it started.
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
        """Variables that name the run, task and key, for the labels of a container."""
        task = self.job.task
        labels = {"RUN": self.job.run_id, "TASK": task.check.name, "KEY": task.key}
        return {f"NPU_MATRIX_{name}": value for name, value in labels.items()}

    def in_cell(
        self,
        module: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_cpu: bool = False,
    ) -> Completed:
        """Run a module inside the cell's environment, which the check `environment` built.

        At its time limit, each of its Python processes prints its stack. InfrastructureError if it was killed
        by its memory limit or by someone else, usually the kernel when memory is exhausted.
        """
        if self.site.cell is None:
            raise InfrastructureError(
                "programs cannot run inside cells here",
                why="this executor was created without an engine for cells",
                fix="run the plan with `npu-matrix run`",
            )
        argv, added = self.site.cell(self._input(ENVIRONMENT), module, args, on_cpu=on_cpu)
        # The program that starts a container has variables of its own; those for the cell have a prefix.
        prefix = CELL_VARIABLE if any(name.startswith(CELL_VARIABLE) for name in added) else ""
        hosts = read_hosts(self.site.environ)
        given = {**self._cards, **(hosts.variables() if hosts else {}), **(env or {})}
        if prefix + SOC_VARIABLE in added:
            given.setdefault(REPORT_VARIABLE, str(self.workdir / SIMULATED_REPORT))
        own = {prefix + name: value for name, value in given.items()}
        if prefix:
            completed = self.command(argv, env={**added, **own}, timeout=timeout, in_cell=True)
        else:
            completed = self.command(
                argv,
                env={"PYTHONFAULTHANDLER": "1", **self._temporary_folders(), **added, **own},
                timeout=timeout,
                signal_number=signal.SIGABRT,
                memory_bytes=parse_size(self.site.environ.get(MEMORY_VARIABLE, "0"), MEMORY_VARIABLE),
                in_cell=True,
            )
        if completed.returncode == -signal.SIGKILL and not completed.timed_out:
            raise external_kill_error(completed.tail)
        return completed

    def permissive_calls(self) -> PermissiveCalls:
        """The calls of all programs of the task for which it is unknown whether torch_npu refuses them."""
        return read_permissive_calls(self.workdir / SIMULATED_REPORT)

    def _temporary_folders(self) -> dict[str, str]:
        """Variables that name the temporary folders for programs of the cell and for a Ray that they start.

        Each task has folders of its own. They are not in its working folder, whose path is too long. They are
        marked with their owner, so that the next run removes those of a killed run. Card leases stay in the
        folder that all tasks share.
        """
        if self._scratch is None:
            remove_orphaned_folders()
            self._scratch = make_temporary_folder()
            for name in (RAY_FOLDER, TEMPORARY_FOLDER):
                (self._scratch / name).mkdir()
        return {
            "RAY_TMPDIR": str(self._scratch / RAY_FOLDER),
            "TMPDIR": str(self._scratch / TEMPORARY_FOLDER),
            # Without it numba stores what it compiled next to the installed modules.
            "NUMBA_CACHE_DIR": str(self._scratch / TEMPORARY_FOLDER),
            # transformers imports code of models from it, also code that another program left there.
            "HF_MODULES_CACHE": str(self._scratch / TEMPORARY_FOLDER / "hf-modules"),
            FOLDER_VARIABLE: str(CardLeases.of_host(self.site.environ).folder),
        }

    def close(self, *, completed: bool) -> None:
        """End the log. Remove the working folder of a completed task, unless `JobSite.keep` is set.

        Secrets in a folder that stays are masked.
        On a full disk the folder is always removed, because its space is needed to store the outcome.
        """
        if self._scratch is not None:
            with contextlib.suppress(OSError):
                remove_temporary_folder(self._scratch)
        full = shutil.disk_usage(self.workdir.parent).free < MIN_FREE_BYTES
        if full or (completed and not self.site.keep):
            shutil.rmtree(self.workdir, ignore_errors=True)
        else:
            self._mask_kept_files()
        self.task_log.close()

    def _mask_kept_files(self) -> None:
        """Mask the secrets in the files of a working folder that stays so that users can find the cause."""
        try:
            for path in self.masker.folder(self.workdir):
                self.log(
                    f"{path} was removed: it contains a secret, or it is too large to be searched for one"
                )
        except OSError as error:
            shutil.rmtree(self.workdir, ignore_errors=True)
            self.log(f"the working folder was removed, because its secrets could not be masked: {error}")

    def _input(self, check: str) -> Outcome:
        try:
            return self.job.inputs[check]
        except KeyError:
            raise InfrastructureError(
                f"{self.job.task.check.name!r} uses the outcome of {check!r}, which is not among its needs",
                why=f"its declared needs are {', '.join(self.job.task.check.needs) or 'none'}",
                fix=f"add {check!r} to the needs of this check",
            ) from None

    def _check_stopped(self) -> None:
        if self.handle.cancelled.is_set():
            raise InterruptedRunError("the run was stopped", fix="run the same command again to resume it")
        if time.monotonic() >= self._deadline:
            raise TaskTimeoutError


def external_kill_error(tail: str) -> InfrastructureError:
    """The error for a program of a cell that npu-matrix did not kill; `tail` is the end of its output."""
    message = next((line for line in reversed(tail.splitlines()) if "for its memory limit" in line), "")
    if message:
        return InfrastructureError(
            "the cell exceeded its memory limit",
            why=message.removeprefix("npu-matrix: "),
            fix=f"raise the limit with {MEMORY_VARIABLE}, or use a smaller recipe",
        )
    return InfrastructureError(
        "a program of the cell was killed",
        why="SIGKILL, and not by npu-matrix: usually the kernel, because memory was exhausted",
        fix="see `dmesg | grep -i oom`; free memory, or run fewer tasks at a time (--jobs)",
    )


def _new_workdir(work: Path, job: Job) -> Path:
    """Create an empty folder for this attempt; the folders of earlier attempts of the task are removed."""
    name = job.task.key[:KEY_CHARACTERS]
    folder = work / f"{name}-{job.attempt}"
    try:
        for old in (*work.glob(f"{name}-*/"), folder):
            if old.is_dir():
                shutil.rmtree(old)
        folder.mkdir(parents=True)
    except OSError as error:
        raise InfrastructureError(
            "cannot create a working folder",
            where=Location(error.filename or folder),
            why=error.strerror or str(error),
            fix="free space on this disk or make the state folder writable, then run again",
        ) from error
    return folder
