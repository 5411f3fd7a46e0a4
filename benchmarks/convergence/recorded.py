"""Real curves: tiny trainings with verl's functions, healthy and with each seeded fault; run it inside a
cell.

`PYTHONPATH=. CELL_PYTHON -m benchmarks.convergence.recorded FOLDER [--healthy N] [NAME ...]` makes
FOLDER/NAME.jsonl for each of grpo, gspo and gspo-paper: N healthy runs and 120 faulty ones, of 1 to 4 seconds
of a core each. What an interrupted recording has made is kept.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.convergence.smoke.smoke_recipe import PAPER_CLIP, TinyRecipe, recipe
from harness.convergence.smoke.training_faults import ARITHMETIC, FAULTS
from harness.convergence.telemetry.series import read

# GSPO twice: with a clip range that small answers let it use, and with its paper's.
RECIPES: Mapping[str, TinyRecipe] = {
    "grpo": recipe("grpo"),
    "gspo": recipe("gspo"),
    "gspo-paper": recipe("gspo", clip_ratio_low=PAPER_CLIP[0], clip_ratio_high=PAPER_CLIP[1]),
}
FIRST_SEED, HEALTHY_SEEDS = 1000, 340
FAULTY_SEEDS = range(FIRST_SEED, FIRST_SEED + 4)
HEALTHY = "healthy"
NOT_JUDGED = ("seconds", "exact")

Runs = Mapping[int, Mapping[str, tuple[float, ...]]]


def make(folder: Path, names: Sequence[str], healthy: int) -> None:
    """Train on the CPU of this process what the folder lacks."""
    from harness.convergence.smoke.smoke_program import train

    for name in names:
        path = folder / f"{name}.jsonl"
        made = groups(path) if path.is_file() else {}
        for fault, seed in _wanted(healthy):
            if seed in made.get(fault or HEALTHY, {}):
                continue
            # Whole runs only: whoever ends the recording leaves nothing half written.
            run = io.StringIO()
            train(RECIPES[name], seed=seed, device="cpu", out=run, fault_name=fault)
            with path.open("a", encoding="utf-8") as out:
                out.write(run.getvalue())


def _wanted(healthy: int) -> Iterator[tuple[str | None, int]]:
    for seed in range(FIRST_SEED, FIRST_SEED + healthy):
        yield None, seed
    for fault in (*FAULTS, *ARITHMETIC):
        for seed in FAULTY_SEEDS:
            yield fault, seed


def groups(path: Path) -> dict[str, dict[int, dict[str, tuple[float, ...]]]]:
    """Series of a file's runs by fault name and seed; "healthy" for those without."""
    found: dict[str, dict[int, dict[str, tuple[float, ...]]]] = {}
    for run in read(path).runs:
        series = {name: values for name, values in run.series.items() if name not in NOT_JUDGED}
        found.setdefault(run.header.get("fault") or HEALTHY, {})[run.header["seed"]] = series
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.convergence.recorded")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(RECIPES))
    parser.add_argument("--healthy", type=int, default=HEALTHY_SEEDS)
    options = parser.parse_intermixed_args()
    make(options.folder, options.names, options.healthy)
