"""`npu-matrix run --record-reference FOLDER`: record reference sets of the cells of a run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.cache_seal import sealed, unsealed
from harness.cell_program.built_environment import is_built
from harness.check import CellCommand, Completed
from harness.convergence.decision.reference_set import write
from harness.convergence.smoke.smoke_recipe import CANDIDATE_SEEDS
from harness.convergence.trainer.judging.reference_comparison import (
    REFERENCE_SEEDS,
    reference_set_content,
    require_complete,
)
from harness.convergence.trainer.trainer_measurements import TrainerRun
from harness.errors import InfrastructureError, Location, NothingSelectedError
from harness.measurements import read_shape
from harness.outcome import Outcome
from harness.plan.tasks.task import Plan
from harness.run.programs.process import run_program as run
from harness.run.programs.process import scrubbed_environment
from harness.run.scheduling.run_result import RunResult

PROGRAM = "harness.convergence.smoke.record_smoke"
TRAINER_PROGRAM = "harness.convergence.trainer.trainer_program"
ALGORITHMS = ("grpo", "gspo")
# Check -> the algorithm that verl's own trainer trains in it.
TRAINERS = {f"trainer-{algorithm}": algorithm for algorithm in ALGORITHMS}
# The rule needs at least 10 runs. With 20, faults of 5 instead of 7 between-run standard deviations are found
# (see `Rule`).
SEEDS = 20
# A run takes 10 s on one core, and up to ten times as long on a loaded machine.
SECONDS_PER_RUN = 100.0
# A trainer run takes one to three minutes, and stops itself when it makes no progress.
SECONDS_PER_TRAINER = 1800.0

RunProgram = Callable[[Sequence[str], Mapping[str, str], float], "Completed"]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One reference set to record: the training of a check in a built cell."""

    cell: str
    check: str
    device: str
    environment: Outcome


def recordings_of_run(plan: Plan, result: RunResult) -> list[Recording]:
    """One recording for each convergence check that has an outcome in a built cell.

    NothingSelectedError if there is none.
    """
    outcomes = result.outcomes
    built = {
        entry.cell_id: outcomes[entry.key]
        for entry in plan.entries
        if entry.check == "environment" and entry.key in outcomes and is_built(outcomes[entry.key])
    }
    devices = {cell.id: cell.device for cell in plan.cells}
    found = [
        Recording(
            cell=entry.cell_id,
            check=entry.check,
            device="cpu" if devices[entry.cell_id] == "cpu" else "npu:0",
            environment=environment,
        )
        for entry in plan.entries
        if entry.check in (*ALGORITHMS, *TRAINERS) and entry.key in outcomes
        if (environment := built.get(entry.cell_id)) is not None
    ]
    if not found:
        raise NothingSelectedError(
            "there is nothing to record: no check of this run trained a model",
            why=f"checks that train are {', '.join((*ALGORITHMS, *TRAINERS))}",
            fix="npu-matrix run --only CELL --check grpo --check gspo --record-reference FOLDER",
        )
    return found


def record_references(
    recordings: Sequence[Recording], folder: Path, enter: CellCommand, run: RunProgram
) -> Iterator[str]:
    """Record the reference sets one after the other; yields the path of each.

    InfrastructureError if a recording fails or the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(
            "the folder for reference sets cannot be created",
            where=Location(folder),
            why=error.strerror or str(error),
            fix="name another folder",
        ) from error
    for one in recordings:
        make = _trainer_set if one.check in TRAINERS else _in_process_set
        yield make(one, folder.absolute(), enter, run)


def _in_process_set(one: Recording, folder: Path, enter: CellCommand, run: RunProgram) -> str:
    twins = [text for seed in CANDIDATE_SEEDS for text in ("--twin", str(seed))]
    arguments = [
        *("--algorithm", one.check, "--name", one.check, "--device", one.device),
        *("--seeds", str(SEEDS), *twins, "--folder", str(folder)),
    ]
    seconds = SECONDS_PER_RUN * (SEEDS + len(CANDIDATE_SEEDS))
    return _last_line(one, enter(one.environment, PROGRAM, arguments), seconds, run)


def _trainer_set(one: Recording, folder: Path, enter: CellCommand, run: RunProgram) -> str:
    """Run the trainer for each seed; runs of an interrupted recording are reused."""
    work = folder / f".{one.check}-{one.cell}"
    work.mkdir(exist_ok=True)
    runs = []
    for seed in REFERENCE_SEEDS:
        finished, out, task = (work / f"{seed}{end}" for end in (".json", ".new", "-task"))
        run_of_seed = _finished_run(finished)
        if run_of_seed is None:
            shutil.rmtree(task, ignore_errors=True)
            task.mkdir()
            arguments = [
                *("--algorithm", TRAINERS[one.check], "--device", one.device.partition(":")[0]),
                *("--seed", str(seed), "--folder", str(task), "--out", str(out)),
            ]
            _last_line(one, enter(one.environment, TRAINER_PROGRAM, arguments), SECONDS_PER_TRAINER, run)
            run_of_seed = read_shape(TrainerRun, out)
            require_complete(run_of_seed)
            shutil.rmtree(task, ignore_errors=True)
            out.write_text(sealed(finished.name, out.read_text("utf-8")), "utf-8")
            out.rename(finished)
        runs.append(run_of_seed)
    path = write(folder, reference_set_content(runs, name=one.check))
    shutil.rmtree(work)
    return str(path)


def _finished_run(file: Path) -> TrainerRun | None:
    """The run of an interrupted recording; None if there is none, or it is not what was written."""
    try:
        text = unsealed(file.name, file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return None if text is None else read_shape(TrainerRun, json.loads(text))


def _last_line(
    one: Recording, command: tuple[Sequence[str], Mapping[str, str]], seconds: float, run: RunProgram
) -> str:
    """The last line that the program printed; InfrastructureError if the program failed."""
    done = run(*command, seconds)
    lines = [line.strip() for line in done.tail.splitlines() if line.strip()]
    if done.returncode != 0 or not lines:
        raise InfrastructureError(
            f"the reference of {one.check} in {one.cell} could not be recorded",
            why=lines[-1] if lines else f"the program ended with {done.returncode}",
            fix=f"see the result of `npu-matrix run --only {one.cell} --check {one.check}`",
        )
    return lines[-1]


def run_program(
    argv: Sequence[str],
    variables: Mapping[str, str],
    seconds: float,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> Completed:
    """Run a cell's program as a task would; `stopped` says whether to stop it early."""
    return run(
        argv,
        env=scrubbed_environment(os.environ, variables),
        cwd=Path.cwd(),
        write=lambda _line: None,
        timeout=seconds,
        stopped=stopped,
    )
