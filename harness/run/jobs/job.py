"""What an executor is given: a task with its inputs, and the place where tasks run."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.check import CellCommand
from harness.devices.cards.device_nodes import DEV
from harness.ledger.artifacts import ArtifactStore
from harness.outcome import Outcome
from harness.plan.tasks.task import Task
from harness.run.programs.task_log import CAP_BYTES, TaskLog


@dataclass(frozen=True, kw_only=True)
class Job:
    """One execution of a task: data only, so that it can travel to another machine.

    inputs: check name -> outcome, of each check the task needs; attempt counts from 1. remakes: check name ->
    the job that made such an input, for a machine that has not what it left (an environment's folder).
    """

    task: Task
    inputs: Mapping[str, Outcome] = field(default_factory=dict)
    remakes: Mapping[str, Job] = field(default_factory=dict)
    attempt: int = 1
    run_id: str = ""


@dataclass(frozen=True, kw_only=True)
class JobSite:
    """The folders and programs of the machine a job runs on.

    cell: how a module is started inside a cell; None where cells cannot be entered.
    keep: whether working folders of completed tasks stay for the user to look at.
    cards: the cards that can be leased here. dev: where their nodes are.
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
        """Where tasks have their private folders."""
        return self.state / "work"


@dataclass(kw_only=True)
class JobHandle:
    """The thread-safe thread between a running job and who watches it; `waits` while it waits for cards."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    log: TaskLog | None = None
    waits: bool = False

    @property
    def last_line(self) -> str:
        """The last line of the job's log."""
        return self.log.last_line if self.log else ""
