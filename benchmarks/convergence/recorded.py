"""Real curves: tiny trainings with verl's functions, healthy and with each seeded fault; run it inside a
cell.

`PYTHONPATH=. CELL_PYTHON -m benchmarks.convergence.recorded FOLDER [NAME ...]` makes FOLDER/NAME.jsonl for
each of grpo, gspo and gspo-paper: 160 runs each, of 1 to 4 seconds of a core.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.convergence.faults import ARITHMETIC, FAULTS
from harness.convergence.recipe import PAPER_CLIP, TinyRecipe, recipe
from harness.convergence.telemetry import read

# GSPO twice: with a clip range that small answers let it use, and with its paper's.
RECIPES: Mapping[str, TinyRecipe] = {
    "grpo": recipe("grpo"),
    "gspo": recipe("gspo"),
    "gspo-paper": recipe("gspo", clip_ratio_low=PAPER_CLIP[0], clip_ratio_high=PAPER_CLIP[1]),
}
HEALTHY_SEEDS = range(1000, 1040)
FAULTY_SEEDS = HEALTHY_SEEDS[:4]
HEALTHY = "healthy"
NOT_JUDGED = ("seconds", "exact")

Runs = Mapping[int, Mapping[str, tuple[float, ...]]]


def make(folder: Path, names: Sequence[str]) -> None:
    """Train everything on the CPU of this process."""
    from harness.convergence.train import train

    for name in names:
        chosen = RECIPES[name]
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as out:
            for seed in HEALTHY_SEEDS:
                train(chosen, seed=seed, device="cpu", out=out)
            for fault in (*FAULTS, *ARITHMETIC):
                for seed in FAULTY_SEEDS:
                    train(chosen, seed=seed, device="cpu", out=out, fault_name=fault)


def groups(path: Path) -> dict[str, dict[int, dict[str, tuple[float, ...]]]]:
    """Series of a file's runs by fault name and seed; "healthy" for those without."""
    found: dict[str, dict[int, dict[str, tuple[float, ...]]]] = {}
    for run in read(path).runs:
        series = {name: values for name, values in run.series.items() if name not in NOT_JUDGED}
        found.setdefault(run.header.get("fault") or HEALTHY, {})[run.header["seed"]] = series
    return found


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2:] or list(RECIPES))
