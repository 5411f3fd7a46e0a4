"""Run tiny trainings inside a cell.

    python -m harness.convergence.smoke.smoke_program --algorithm grpo --seed 0 --device npu:0 --out run.jsonl

Several seeds and algorithms can share one process, because importing torch and verl takes longer than a run.
Exit code 0 when the runs were recorded, whatever they learned; 2 for bad usage; 4 when nothing could be
trained. In-cell module.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from harness.cell_program.torch_device import device_facts, package_version
from harness.convergence.smoke import smoke_recipe as recipes
from harness.convergence.smoke.smoke_recipe import TinyRecipe
from harness.convergence.telemetry.machine_load import OtherProcesses, machine_load
from harness.convergence.telemetry.series import SCHEMA, encode
from harness.errors import HarnessError
from harness.serialisation import to_json

_PACKAGES = ("torch", "torch_npu", "verl", "numpy", "transformers", "tensordict")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="harness.convergence.smoke.smoke_program", description=__doc__.split("\n")[0]
    )
    result.add_argument("--algorithm", nargs="+", choices=recipes.ALGORITHMS, required=True)
    result.add_argument("--seed", type=int, action="append", required=True, help="repeat for several runs")
    result.add_argument("--device", required=True, help="npu:0 or cpu")
    result.add_argument("--out", type=Path, required=True, help="JSON lines, overwritten")
    result.add_argument("--steps", type=int)
    result.add_argument("--clip-low", type=float)
    result.add_argument("--clip-high", type=float)
    result.add_argument("--learning-rate", type=float)
    result.add_argument("--fault", help="inject a known bug, which the run's header names")
    result.add_argument(
        "--stop-file", type=Path, help="stop the run after the step in which this file appears"
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Train each algorithm of the command line with each seed."""
    options = parser().parse_args(argv)
    try:
        with options.out.open("w", encoding="utf-8") as stream:
            for algorithm in options.algorithm:
                chosen = recipes.recipe(
                    algorithm,
                    steps=options.steps,
                    clip_ratio_low=options.clip_low,
                    clip_ratio_high=options.clip_high,
                    learning_rate=options.learning_rate,
                )
                for seed in options.seed:
                    train(
                        chosen,
                        seed=seed,
                        device=options.device,
                        out=stream,
                        fault_name=options.fault,
                        stop_file=options.stop_file,
                    )
    except HarnessError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def train(
    recipe: TinyRecipe,
    *,
    seed: int,
    device: str,
    out: TextIO,
    fault_name: str | None = None,
    stop_file: Path | None = None,
) -> None:
    """Train once, and write each step before the next one begins, so that a killed run is readable.

    stop_file: the run stops after the step in which this file appears.
    """
    from harness.convergence.smoke.training_device import open_device
    from harness.convergence.smoke.training_faults import fault
    from harness.convergence.smoke.training_loop import Training

    open_device(device)
    name = f"{recipe.algorithm}-{seed}" + (f"-{fault_name}" if fault_name else "")
    training = Training(recipe, seed=seed, device=device, fault=fault(fault_name))
    header = {
        "seed": seed,
        "recipe": recipe.as_json(),
        "digest": recipe.digest(),
        "fault": fault_name,
        "device": to_json(device_facts(device)),
        "versions": versions(device),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "host": to_json(machine_load()),
    }
    _write(out, {"schema": SCHEMA, "kind": "run", "run": name, **header})
    started, others = time.perf_counter(), OtherProcesses()
    last: Mapping[str, float] = {}
    for step, last in enumerate(training):
        values = {metric: encode(value) for metric, value in last.items()}
        _write(out, {"kind": "step", "run": name, "step": step, **values})
        if stop_file is not None and stop_file.exists():
            break
    seconds = time.perf_counter() - started
    host = {"others": others.share()}
    _write(out, {"kind": "end", "run": name, "seconds": encode(seconds), "host": host})
    sys.stdout.write(f"{name}: reward {last.get('reward', float('nan')):.3f} after {seconds:.1f} s\n")
    sys.stdout.flush()


def versions(device: str) -> dict[str, str]:
    """The installed versions of the packages that affect a curve on `device`."""
    packages = [name for name in _PACKAGES if device != "cpu" or name != "torch_npu"]
    return {name: found for name in packages if (found := package_version(name))}


def _write(out: TextIO, record: Mapping[str, Any]) -> None:
    out.write(json.dumps(record, allow_nan=False) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
