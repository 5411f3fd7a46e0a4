"""What an executor needs to run a task: the task with its inputs, and the folders of the machine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.check import CellCommand
from harness.devices.cards.device_nodes import DEV
from harness.digest import canonical_json
from harness.ledger.artifacts import ArtifactStore
from harness.outcome import Outcome
from harness.plan.tasks.task import Task
from harness.run.programs.task_log import CAP_BYTES, TaskLog
from harness.sources.redact import redact_text


@dataclass(frozen=True, kw_only=True)
class Job:
    """One execution of a task. It can be pickled and sent to another machine.

    inputs: check name -> outcome, for each check that the task needs. remakes: check name -> the job that
    produced such an input; another machine repeats it if the input needs files there, such as an environment.
    attempt: counts from 1. cells: the cells that have this task.
    """

    task: Task
    inputs: Mapping[str, Outcome] = field(default_factory=dict)
    remakes: Mapping[str, Job] = field(default_factory=dict)
    attempt: int = 1
    run_id: str = ""
    cells: tuple[str, ...] = ()

    @property
    def public_text(self) -> str:
        """What the plan stores of this job. It is no secret, even if a variable has it too."""
        return redact_text(canonical_json({"facets": self.task.facets, "cells": self.cells}))


@dataclass(frozen=True, kw_only=True)
class JobSite:
    """The folders and devices of the machine that a job runs on.

    cell: makes the command that runs a module inside a cell; None if programs cannot run inside cells here.
    keep: whether the working folders of completed tasks are kept. log_cap: largest log in bytes.
    cards: the cards that can be leased. dev: the folder of their device nodes.
    """

    root: Path
    state: Path
    cache: Path
    environ: Mapping[str, str]
    cell: CellCommand | None = None
    keep: bool = False
    log_cap: int = CAP_BYTES
    cards: tuple[int, ...] = ()
    dev: Path = DEV

    @property
    def artifacts(self) -> ArtifactStore:
        """The artifact store of the ledger in the state folder."""
        return ArtifactStore(self.state / "artifacts")

    @property
    def work(self) -> Path:
        """The folder that contains the working folders of the tasks."""
        return self.state / "work"


@dataclass(kw_only=True)
class JobHandle:
    """Thread-safe access to a running job: cancels it and shows its log. `waits`: it is waiting for cards."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    log: TaskLog | None = None
    waits: bool = False

    @property
    def last_line(self) -> str:
        """The last line of the job's log."""
        return self.log.last_line if self.log else ""
