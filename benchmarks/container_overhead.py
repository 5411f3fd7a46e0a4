"""What a container costs the check `loss`, against the same check in the virtual environment of the same
cell.

Both engines execute the check in turn, seven times, without the ledger; medians of the wall time are
compared. The ledger must have the cell's `environment` built by both engines.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import ROOT, CannotRunError, Figure, timed
from harness.builds.cell.cell_command import cell_launcher
from harness.ledger.store import Ledger
from harness.outcome import Outcome, State
from harness.plan.tasks.task import Task
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite
from harness.settings import Settings, load_settings
from harness.workspace.planning.open_plan import open_plan

RUNS = 7
REMEDY = (
    "set NPU_MATRIX_BASE_IMAGE, then npu-matrix run --only 'verl-0-9-1*' --check environment, "
    "once as it is and once with --engine docker"
)


def task_and_environment(settings: Settings, verl: str, check: str) -> tuple[Task, Outcome]:
    plan = open_plan(settings, checks=[check]).plan
    cell = next(one for one in plan.cells if one.axes.get("verl") == verl and one.device == "sim")
    keys = {entry.check: entry.key for entry in plan.entries if entry.cell_id == cell.id}
    with Ledger.open(settings.path("state")) as ledger:
        built = ledger.get(keys["environment"])
    if built is None or not built.measurements.get("built"):
        engine = settings["engine"]
        raise CannotRunError(f"the cell of verl {verl} is not built with the engine {engine}", REMEDY)
    return plan.tasks[keys[check]], built


def figures() -> Iterator[Figure]:
    if not os.environ.get("NPU_MATRIX_BASE_IMAGE"):
        raise CannotRunError("no base image for containers is set", REMEDY)
    engines = {"venv": {"engine": "venv"}, "docker": {"engine": "docker"}}
    prepared = {}
    for engine, flag in engines.items():
        settings = load_settings(dict(flag), os.environ, ROOT)
        prepared[engine] = (settings, *task_and_environment(settings, "0.9.1", "loss"))
    seconds: dict[str, list[float]] = {engine: [] for engine in engines}
    for number in range(RUNS + 1):
        for engine, (settings, task, built) in prepared.items():
            with tempfile.TemporaryDirectory() as folder:
                site = JobSite(
                    root=settings.root,
                    state=Path(folder),
                    cache=settings.cache,
                    environ=os.environ,
                    cell=cell_launcher(settings.cache),
                )
                with timed() as took:
                    outcome = execute(Job(task=task, inputs={"environment": built}), site)
            if outcome.state is not State.COMPLETED:
                raise RuntimeError(f"loss did not complete with {engine}: {outcome.failure}")
            # The first of each reads its files from the disk.
            if number:
                seconds[engine].append(took.seconds)
    venv = statistics.median(seconds["venv"])
    yield Figure(
        claim=f"check loss in a container, median of {RUNS}",
        measured=statistics.median(seconds["docker"]),
        unit="s",
        limit=1.05 * venv,
        rival=venv,
        rival_name="virtual environment",
    )
