"""What a container costs a check, against the same check in the virtual environment of the same cell.

Needs a ledger in which the cell's `environment` was built by both engines. The check is executed in turn by
both, without the ledger; printed are medians of wall time, and of what the program in the cell itself took.

    npu-matrix run --only CELL --check environment
    npu-matrix run --only CELL --check environment --engine docker --base-image BASE
    python benchmarks/builds/overhead.py --base-image BASE [--verl 0.9.1] [--check loss] [--runs 7]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from harness.ledger.store import Ledger
from harness.outcome import Outcome, State
from harness.plan.tasks.task import Task
from harness.run.jobs.execute import execute
from harness.run.jobs.job import Job, JobSite
from harness.settings import Settings, load_settings
from harness.workspace.execution.run_setup import cell_launcher
from harness.workspace.planning.open_plan import open_plan


def task_and_environment(settings: Settings, verl: str, check: str) -> tuple[Task, Outcome]:
    plan = open_plan(settings, checks=[check]).plan
    cell = next(one for one in plan.cells if one.axes.get("verl") == verl and one.device == "sim")
    keys = {entry.check: entry.key for entry in plan.entries if entry.cell_id == cell.id}
    with Ledger.open(settings.path("state")) as ledger:
        built = ledger.get(keys["environment"])
    if built is None or not built.measurements.get("built"):
        raise SystemExit(f"the cell of verl {verl} is not built with the engine {settings['engine']}")
    return plan.tasks[keys[check]], built


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-image", required=True)
    parser.add_argument("--engine", default="docker")
    parser.add_argument("--verl", default="0.9.1")
    parser.add_argument("--check", default="loss")
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    flags = {
        "venv": {"engine": "venv"},
        options.engine: {"engine": options.engine, "base_image": options.base_image},
    }
    seconds: dict[str, list[float]] = {engine: [] for engine in flags}
    inside: dict[str, list[float]] = {engine: [] for engine in flags}
    prepared = {}
    for engine, flag in flags.items():
        settings = load_settings(dict(flag), os.environ, Path.cwd())
        prepared[engine] = (settings, *task_and_environment(settings, options.verl, options.check))
    for number in range(options.runs + 1):
        for engine, (settings, task, built) in prepared.items():
            with tempfile.TemporaryDirectory() as folder:
                site = JobSite(
                    root=settings.root,
                    state=Path(folder),
                    cache=settings.cache,
                    environ=os.environ,
                    cell=cell_launcher(settings.cache),
                )
                started = time.monotonic()
                outcome = execute(Job(task=task, inputs={"environment": built}), site)
            if outcome.state is not State.COMPLETED:
                raise SystemExit(f"{options.check} did not complete with {engine}: {outcome.failure}")
            # The first of each reads its files from the disk.
            if number:
                seconds[engine].append(time.monotonic() - started)
                inside[engine].append(float(outcome.measurements["seconds"]["in_cell"]))
    medians = {engine: statistics.median(found) for engine, found in seconds.items()}
    ratio = medians[options.engine] / medians["venv"]
    report = {
        "check": options.check,
        "runs": options.runs,
        "median_seconds": {engine: round(value, 2) for engine, value in medians.items()},
        "median_in_cell": {engine: round(statistics.median(found), 2) for engine, found in inside.items()},
        "all": {engine: [round(value, 2) for value in found] for engine, found in seconds.items()},
        "overhead_percent": round(100 * (ratio - 1), 1),
        "goal_percent": 5.0,
    }
    print(json.dumps(report, indent=1))
    return 0 if ratio <= 1.05 else 1


if __name__ == "__main__":
    raise SystemExit(main())
