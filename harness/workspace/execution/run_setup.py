"""Prepares a run: the lock of the state folder, the executor, its folders, and the facts about this host."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from harness.builds.cell.cell_command import cell_launcher
from harness.ledger.artifacts import ArtifactStore
from harness.ledger.attestation.host_identity import host_fingerprint
from harness.plan.change.revision import checkout_revision
from harness.run.executors.executor import LocalExecutor
from harness.run.jobs.job import JobSite
from harness.run.programs.interruption import Interruption
from harness.run.scheduling.run_lock import run_lock
from harness.settings import Settings
from harness.sources.secrets.masking import Masker
from harness.workspace.planning.open_plan import PlanContext, host_kind

if TYPE_CHECKING:
    from harness.run.executors.ray_executor import RayExecutor
LOGGER = logging.getLogger(__name__)


@contextlib.contextmanager
def exclusive_run(settings: Settings) -> Iterator[Callable[[], bool]]:
    """Lock the state folder; yields a function that returns whether the user interrupted the run.

    InfrastructureError if another run uses this state folder and the setting `wait` is off.
    """
    # The command is stored in the lock file, for whoever waits for this run.
    command = ["npu-matrix", *Masker.of_command(os.environ).json(sys.argv[1:])]
    with (
        Interruption() as stopped,
        run_lock(
            settings.path("state"), command=command, wait=settings.wait, notify=LOGGER.info, stopped=stopped
        ),
    ):
        yield stopped


@contextlib.contextmanager
def local_run(settings: Settings) -> Iterator[tuple[LocalExecutor, Callable[[], bool]]]:
    """Like `exclusive_run`; also yields an executor that runs tasks on this machine."""
    with (
        exclusive_run(settings) as stopped,
        contextlib.closing(LocalExecutor(local_site(settings), settings.jobs)) as executor,
    ):
        yield executor, stopped


def ray_cluster(settings: Settings) -> RayExecutor | None:
    """The executor for a Ray cluster; None if tasks run on this machine."""
    if settings["executor"] == "local":
        return None
    from harness.run.executors.ray_executor import RayExecutor, RemoteSite

    return RayExecutor(
        ArtifactStore(settings.path("state") / "artifacts"),
        settings.root,
        RemoteSite(cell=cell_launcher),
        settings["ray_address"],
    )


def local_site(settings: Settings, *, keep: bool = False, cards: tuple[int, ...] = ()) -> JobSite:
    """The folders, environment and cards for tasks on this machine. keep: whether to keep work folders."""
    cache = settings.cache
    return JobSite(
        root=settings.root,
        state=settings.path("state"),
        cache=cache,
        environ=os.environ,
        cell=cell_launcher(cache),
        keep=keep,
        cards=cards,
    )


def host_record(context: PlanContext) -> dict[str, str]:
    """The facts of this host that are stored with a run."""
    return {
        "revision": checkout_revision(context.settings.root),
        "system": platform.platform(),
        "python": platform.python_version(),
        **host_kind(context.host),
        **({"stand-in": "a rehearsal, no NPU"} if context.settings["rehearsal"] else {}),
        "host": host_fingerprint(),
        "runner": context.settings["runner"],
        "cann": context.host.cann or "none",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
