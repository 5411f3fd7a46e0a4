"""Real curves: tiny trainings with verl's functions, healthy and with each seeded fault; run it inside a
cell.

`PYTHONPATH=. CELL_PYTHON -m benchmarks.convergence.recorded FOLDER` makes FOLDER/grpo.jsonl and
FOLDER/gspo.jsonl, 320 runs of a second each on an idle core.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from harness.convergence.faults import ARITHMETIC, FAULTS
from harness.convergence.recipe import ALGORITHMS, recipe
from harness.convergence.telemetry import read

HEALTHY_SEEDS = range(1000, 1040)
FAULTY_SEEDS = HEALTHY_SEEDS[:4]
HEALTHY = "healthy"
NOT_JUDGED = ("seconds", "exact")

Runs = Mapping[int, Mapping[str, tuple[float, ...]]]


def make(folder: Path) -> None:
    """Train everything on the CPU of this process."""
    from harness.convergence.train import train

    for algorithm in ALGORITHMS:
        with (folder / f"{algorithm}.jsonl").open("w", encoding="utf-8") as out:
            for seed in HEALTHY_SEEDS:
                train(recipe(algorithm), seed=seed, device="cpu", out=out)
            for name in (*FAULTS, *ARITHMETIC):
                for seed in FAULTY_SEEDS:
                    train(recipe(algorithm), seed=seed, device="cpu", out=out, fault_name=name)


def groups(path: Path) -> dict[str, dict[int, dict[str, tuple[float, ...]]]]:
    """Series of a file's runs by fault name and seed; "healthy" for those without."""
    found: dict[str, dict[int, dict[str, tuple[float, ...]]]] = {}
    for run in read(path).runs:
        series = {name: values for name, values in run.series.items() if name not in NOT_JUDGED}
        found.setdefault(run.header.get("fault") or HEALTHY, {})[run.header["seed"]] = series
    return found


if __name__ == "__main__":
    make(Path(sys.argv[1]))
