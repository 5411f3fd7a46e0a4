"""Program in the cell: ten steps of sampling and training, on the device and as a float64 twin on the CPU.

    python -m harness.numerics.twin.twin_program --role reference --out twin.npz
    python -m harness.numerics.twin.twin_program --role device --reference twin.npz --out device.json

Both twins draw the same noise, so they answer alike until a rounding difference turns a decision: a sampled
token, or on which side of a clip bound a ratio is. Until which step that cannot happen is the horizon. It is
measured: perturbed twins (`stochastic`) show how far roundings take every number that is decided upon, and
the exact twin how far that number is from its boundary. Past the horizon nothing is compared.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.cell_program.torch_device import device_facts
from harness.errors import InputError, NothingSelectedError
from harness.measurements import json_object
from harness.numerics.actor.actor_case import PROMPT, Arrays
from harness.numerics.actor.actor_update import TensorPlacement, run_role, start_torch
from harness.numerics.actor.tensor_recorder import PARAMETER, json_number, permitted, require_comparable
from harness.numerics.loss.cases.loss_case import read_npz, write_npz
from harness.numerics.twin.twin_case import CONTRACTS, UPDATE, TwinCase
from harness.numerics.twin.twin_faults import TWIN_FAULTS, TwinFault
from harness.numerics.twin.twin_steps import TwinRun, Values, run_twin

TWIN_REFERENCE_FORMAT = "npu-matrix-twin-reference/1"
SAMPLES = 6
"""Perturbed twins; the contract's safety doubles the largest of their distances, as for `actor`."""


def compute_twin_reference(case: TwinCase, out: Path) -> dict[str, Any]:
    """Exact twin, tolerances and horizon; written to `out`."""
    sys.modules["torch_npu"] = None  # type: ignore[assignment]
    torch = start_torch()
    from harness.numerics.arithmetic import stochastic_arithmetic

    started = time.monotonic()
    contract = case.contract
    setting = TensorPlacement(torch=torch, device="cpu", dtype=torch.float64)
    _require_registry(case)
    exact = run_twin(case, setting, None, mode=stochastic_arithmetic.exact(contract))
    drift = dict.fromkeys(exact.decisions, 0.0)
    unmodelled: set[str] = set()

    def scattered(*, guesses: bool) -> dict[str, float]:
        scatter = dict.fromkeys(exact.values, 0.0)
        for number in range(SAMPLES):
            mode = stochastic_arithmetic.perturbed(contract, number, guesses=guesses)
            twin = run_twin(case, setting, exact.tokens, mode=mode, sample=False)
            for label, values in exact.values.items():
                scatter[label] = max(scatter[label], _distance(twin.values.get(label), values))
            for label, (numbers, _) in exact.decisions.items():
                drift[label] = max(drift[label], _farthest(twin.decisions.get(label), numbers))
            unmodelled.update(mode.unmodelled)
        require_comparable(scatter)
        return scatter

    scatter = scattered(guesses=True)
    tolerances = {"tolerances": permitted(scatter, exact.values, contract)}
    if unmodelled:
        tolerances["strict"] = permitted(scattered(guesses=False), exact.values, contract)
    facts = {
        "verl": version("verl"),
        "torch": torch.__version__,
        "samples": SAMPLES,
        "contract": contract.to_json(),
        **horizon(case.steps, exact, drift, contract.safety),
        **growth(case.steps, exact, scatter),
        "unmodelled": sorted(unmodelled),
        "frameworks_loaded": [name for name in ("torch_npu",) if sys.modules.get(name) is not None],
        "seconds": round(time.monotonic() - started, 3),
    }
    labels = list(exact.values)
    index = {"format": TWIN_REFERENCE_FORMAT, "facts": facts, "labels": labels, **tolerances}
    # In single precision: what that loses is the rounding that every tolerance has room for.
    arrays: dict[str, NDArray[Any]] = {
        f"exact.{place}": exact.values[label].astype(np.float32) for place, label in enumerate(labels)
    }
    write_npz(out, index, {**arrays, "tokens": np.stack(exact.tokens)})
    return facts


def horizon(steps: int, exact: TwinRun, drift: Mapping[str, float], safety: float) -> dict[str, Any]:
    """Steps whose every decision is farther from its boundary than roundings can take it, from the first on.

    slack: for each step the smallest ratio of that distance to `safety` times the largest drift. limited_by:
    what the first step past the horizon decides too closely.
    """
    slack, closest = [], []
    for step in range(steps):
        ratios = {
            label.split("/")[1]: float(np.min(margins, initial=np.inf) / max(safety * drift[label], 1e-300))
            for label, (_, margins) in exact.decisions.items()
            if label.split("/")[0] == str(step)
        }
        nearest = min(ratios, key=lambda name: ratios[name])
        slack.append(float(f"{min(ratios[nearest], 1e300):.4g}"))
        closest.append(nearest)
    reached = next((step for step in range(steps) if slack[step] <= 1), steps)
    return {
        "horizon": reached,
        "slack": slack,
        "limited_by": "" if reached == steps else closest[reached],
    }


def growth(steps: int, exact: TwinRun, scatter: Mapping[str, float]) -> dict[str, Any]:
    """Relative distance of all parameters after each step, and by what factor it grows from step to step."""
    distances = []
    for step in range(steps):
        labels = [label for label in scatter if label.startswith(f"{step}/{PARAMETER}/")]
        size = math.sqrt(sum(float((exact.values[label] ** 2).sum()) for label in labels))
        distances.append(math.sqrt(sum(scatter[label] ** 2 for label in labels)) / max(size, 1e-300))
    known = len(distances) > 1 and distances[0] > 0 and math.isfinite(distances[-1])
    factor = (distances[-1] / distances[0]) ** (1 / (steps - 1)) if known else math.nan
    return {
        "noise": [float(f"{distance:.4g}") for distance in distances],
        "growth": None if math.isnan(factor) else float(f"{factor:.4g}"),
    }


def _distance(found: Values | None, exact: Values) -> float:
    if found is None or found.shape != exact.shape or not np.isfinite(found).all():
        return math.inf
    return float(np.linalg.norm(found - exact))


def _farthest(found: tuple[Values, Values] | None, exact: Values) -> float:
    if found is None or found[0].shape != exact.shape:
        return math.inf
    finite = np.isfinite(exact)
    return float(np.abs(found[0][finite] - exact[finite]).max(initial=0.0))


def run_device_twin(case: TwinCase, name: str, reference_file: Path, out: Path) -> dict[str, Any]:
    """The twin on the device, and once more under each seeded fault; written to `out`."""
    kind = name.split(":", maxsplit=1)[0]
    if kind != "npu":
        sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
    torch = start_torch(kind)
    index, arrays = read_npz(reference_file, TWIN_REFERENCE_FORMAT)
    exact = {label: arrays[f"exact.{place}"] for place, label in enumerate(index["labels"])}
    script = list(arrays["tokens"])
    reached = index["facts"]["horizon"]
    setting = TensorPlacement(torch=torch, device=name, dtype=getattr(torch, case.dtype))
    started = time.monotonic()

    def run(steps: int, fault: TwinFault | None = None) -> dict[str, Any]:
        twin = run_twin(case, setting, script, mode=nullcontext(), steps=steps, fault=fault)
        expected = [label for label in index["labels"] if int(label.split("/")[0]) < steps]
        return {
            "errors": {
                label: json_number(_distance(twin.values[label], exact[label]))
                for label in expected
                if label in twin.values
            },
            "missing": [label for label in expected if label not in twin.values],
            "tokens": [
                _differing(case.batch(case.prompts(step), script[step]), script[step], twin.tokens[step])
                for step in range(steps)
            ],
        }

    clean = run(reached)
    facts = {
        "device": json_object(device_facts(name)),
        "verl": version("verl"),
        "path": import_module("harness.numerics.actor.verl_workers").actor_class().name,
        "steps": reached,
        "twin": clean,
        "faults": {fault.id: run(fault.steps, fault) for fault in TWIN_FAULTS if fault.steps <= reached},
        "seconds": round(time.monotonic() - started, 3),
    }
    out.write_text(json.dumps(facts), encoding="utf-8")
    return facts


def _differing(tokens: Arrays, wanted: NDArray[np.int64], found: NDArray[np.int64]) -> int:
    """Responses with another token than the twin's."""
    kept = tokens["attention_mask"][:, PROMPT:] != 0
    return int(((wanted != found) & kept).any(axis=1).sum())


def _require_registry(case: TwinCase) -> None:
    from harness.numerics.actor.verl_workers import actor_class

    actor_class()
    registry = getattr(import_module("verl.trainer.ppo.core_algos"), "POLICY_LOSS_REGISTRY", {})
    if case.update["loss_mode"] not in registry:
        raise NothingSelectedError(
            f"this verl has no policy loss {case.update['loss_mode']!r} that a twin could watch",
            fix="leave the check `twin` out for this cell, or name another loss_mode",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.numerics.twin.twin_program", description="a twin run"
    )
    parser.add_argument("--role", choices=("reference", "device"), required=True)
    parser.add_argument("--device", default="npu:0", help="npu:0, cpu, cuda:0")
    parser.add_argument("--reference", type=Path, help="what the reference wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--case", default="{}", help="settings of the case, a JSON object")
    arguments = parser.parse_args(argv)

    def work() -> Mapping[str, Any]:
        case = case_of(json.loads(arguments.case))
        if arguments.role == "reference":
            return compute_twin_reference(case, arguments.out)
        return run_device_twin(case, arguments.device, arguments.reference, arguments.out)

    return run_role(f"{arguments.role} of a twin run", work)


def case_of(settings: Mapping[str, Any]) -> TwinCase:
    """A case whose `seed`, `steps`, `dtype`, `sampling` and entries of `update` are given.

    InputError for a dtype or a number of steps that there cannot be, and for an unknown setting.
    """
    unknown = sorted({*settings.get("update", {})} - {*UPDATE})
    if settings.get("dtype", "float32") not in CONTRACTS or int(settings.get("steps", 1)) < 1 or unknown:
        raise InputError(
            "a twin run cannot be set up like this",
            why=f"unknown: {', '.join(unknown)}" if unknown else json.dumps(dict(settings)),
            fix=f"dtype is one of {', '.join(CONTRACTS)}; steps at least 1; update has {', '.join(UPDATE)}",
        )
    own = {name: settings[name] for name in ("seed", "steps", "dtype", "sampling") if name in settings}
    case = TwinCase(**own)
    return TwinCase(**own, update={**case.update, **settings.get("update", {})})


if __name__ == "__main__":
    sys.exit(main())
