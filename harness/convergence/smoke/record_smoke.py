"""Record a reference set inside a cell.

    python -m harness.convergence.smoke.record_smoke --algorithm grpo --folder F

In-cell module.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.cell_program.torch_device import device_facts
from harness.convergence.decision import reference_set
from harness.convergence.smoke import smoke_recipe as recipes
from harness.convergence.smoke.smoke_program import train
from harness.convergence.telemetry.machine_load import largest_load
from harness.convergence.telemetry.series import read
from harness.convergence.telemetry.training_records import MachineLoad, ReferenceProvenance
from harness.errors import HarnessError, InfrastructureError


def main(argv: Sequence[str] | None = None) -> int:
    """Train the seeds 0 to N - 1, write them as one reference set, and print its path."""
    options = parser().parse_args(argv)
    try:
        sys.stdout.write(f"{record(options)}\n")
    except HarnessError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="harness.convergence.smoke.record_smoke", description=__doc__.split("\n")[0]
    )
    result.add_argument("--algorithm", choices=recipes.ALGORITHMS, required=True)
    result.add_argument("--name", help="default: the algorithm")
    result.add_argument("--seeds", type=int, default=20)
    result.add_argument(
        "--twin", type=int, action="append", default=[], help="a seed of candidate runs; repeatable"
    )
    result.add_argument("--device", default="cpu")
    result.add_argument("--folder", type=Path, required=True, help="existing folder for the reference set")
    result.add_argument("--steps", type=int)
    result.add_argument("--clip-low", type=float)
    result.add_argument("--clip-high", type=float)
    return result


def record(options: argparse.Namespace) -> Path:
    """Record the reference set of the command line, and return its path."""
    chosen = recipes.recipe(
        options.algorithm,
        steps=options.steps,
        clip_ratio_low=options.clip_low,
        clip_ratio_high=options.clip_high,
    )
    name = options.name or options.algorithm
    seeds = [*range(options.seeds), *options.twin]
    raw = options.folder / f"{name}.jsonl"
    with raw.open("w", encoding="utf-8") as stream:
        for seed in seeds:
            train(chosen, seed=seed, device=options.device, out=stream)
    telemetry = read(raw)
    broken = [*telemetry.problems, *(problem for run in telemetry.runs for problem in run.problems)]
    if broken or not telemetry.runs:
        raise InfrastructureError("the recorded runs are not complete", why="; ".join(broken) or "no run")
    header = telemetry.runs[0].header
    body = reference_set.content(
        name=name,
        recipe_digest=chosen.digest(),
        recipe=chosen.as_json(),
        provenance=ReferenceProvenance(
            device=device_facts(options.device),
            versions=header["versions"],
            python=header["python"],
            machine=header["machine"],
            host=largest_load([MachineLoad(**run.header["host"]) for run in telemetry.runs]),
            date=dt.datetime.now(dt.timezone.utc).date().isoformat(),
            program="python -m harness.convergence.smoke.record_smoke",
        ),
        runs=[(run.header["seed"], run.series) for run in telemetry.runs[: options.seeds]],
        twins=[(run.header["seed"], run.series) for run in telemetry.runs[options.seeds :]],
    )
    raw.unlink()
    return reference_set.write(options.folder, body)


if __name__ == "__main__":
    sys.exit(main())
