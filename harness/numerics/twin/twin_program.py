"""In-cell program: ten steps of sampling and training, on the device or as a float64 copy on the CPU.

    python -m harness.numerics.twin.twin_program --role reference --out twin.npz
    python -m harness.numerics.twin.twin_program --role device --reference twin.npz --out device.json

Both runs use the same noise, so they compute the same until a rounding difference changes a decision: a
sampled token, or the side of a clip bound on which a ratio is. The horizon is the number of steps in which
that cannot happen. It is
measured: perturbed runs (`stochastic_arithmetic`) show how far rounding moves every number that decides
    something, and the exact run shows how far that number is from its boundary. Nothing is compared beyond
    the horizon.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.cell_program.torch_device import device_facts
from harness.errors import InputError, NothingSelectedError
from harness.measurements import read_shape
from harness.numerics.actor.actor_case import PROMPT, Arrays
from harness.numerics.actor.actor_update import ProgramFacts, TensorPlacement, run_role, start_torch
from harness.numerics.actor.tensor_recorder import PARAMETER, json_number, require_comparable, tolerances
from harness.numerics.actor.verl_workers import actor_class
from harness.numerics.loss.cases.loss_case import read_npz, write_npz
from harness.numerics.twin.twin_case import CONTRACTS, UPDATE, TwinCase
from harness.numerics.twin.twin_faults import TWIN_FAULTS, TwinFault
from harness.numerics.twin.twin_measurements import (
    Horizon,
    RoundingGrowth,
    TwinDeviceRun,
    TwinErrors,
    TwinReference,
    TwinReferenceFacts,
)
from harness.numerics.twin.twin_steps import TwinRun, Values, run_twin
from harness.serialisation import json_object

TWIN_REFERENCE_FORMAT = "npu-matrix-twin-reference/2"
SAMPLES = 6
"""Number of perturbed runs; the safety factor of the contract doubles the largest of their distances, as for
`actor`."""


EXACT, TOKENS, HORIZON = "exact:", "tokens", "horizon"
"""Arrays in the file: exact tensors (a prefix and the label), the sampled tokens, the number of steps."""


def compute_twin_reference(case: TwinCase, out: Path) -> TwinReferenceFacts:
    """Compute the exact run, tolerances and horizon, and write them to `out`."""
    sys.modules["torch_npu"] = None  # type: ignore[assignment]
    torch = start_torch()
    # It imports torch, which the host does not have.
    from harness.numerics.arithmetic import stochastic_arithmetic

    started = time.monotonic()
    contract = case.contract
    placement = TensorPlacement(torch=torch, device="cpu", dtype=torch.float64)
    _require_registry(case)
    exact = run_twin(case, placement, None, mode=stochastic_arithmetic.exact(contract))
    drift = dict.fromkeys(exact.decisions, 0.0)
    unbounded: set[str] = set()

    def scattered(*, guesses: bool) -> dict[str, float]:
        scatter = dict.fromkeys(exact.values, 0.0)
        for number in range(SAMPLES):
            mode = stochastic_arithmetic.perturbed(contract, number, guesses=guesses)
            twin = run_twin(case, placement, exact.tokens, mode=mode, sample=False)
            for label, values in exact.values.items():
                scatter[label] = max(scatter[label], _distance(twin.values.get(label), values))
            for label, (numbers, _) in exact.decisions.items():
                drift[label] = max(drift[label], _farthest(twin.decisions.get(label), numbers))
            unbounded.update(mode.unbounded)
        require_comparable(scatter)
        return scatter

    scatter = scattered(guesses=True)
    strict = tolerances(scattered(guesses=False), exact.values, contract) if unbounded else {}
    facts = TwinReferenceFacts(
        verl=version("verl"),
        torch=str(torch.__version__),
        samples=SAMPLES,
        contract=contract.name,
        horizon=horizon(case.steps, exact, drift, contract.safety),
        rounding=rounding_growth(case.steps, exact, scatter),
        unbounded_operators=tuple(sorted(unbounded)),
        frameworks_loaded=tuple(name for name in ("torch_npu",) if sys.modules.get(name) is not None),
        seconds=round(time.monotonic() - started, 3),
    )
    reference = TwinReference(
        facts=facts,
        labels=tuple(exact.values),
        tolerances=tolerances(scatter, exact.values, contract),
        strict=strict,
    )
    save_twin_reference(out, reference, exact)
    return facts


def save_twin_reference(file: Path, reference: TwinReference, exact: TwinRun) -> None:
    """Write a reference with its tensors."""
    # Single precision is enough: every tolerance includes a rounding error larger than that of float32.
    arrays: dict[str, NDArray[Any]] = {
        f"{EXACT}{label}": values.astype(np.float32) for label, values in exact.values.items()
    }
    if exact.tokens:
        arrays[TOKENS] = np.stack(exact.tokens)
    arrays[HORIZON] = np.array(reference.facts.horizon.horizon)
    write_npz(file, {"format": TWIN_REFERENCE_FORMAT, "reference": json_object(reference)}, arrays)


def load_twin_reference(file: Path) -> TwinReference:
    """A reference without its tensors. For the host only, because it imports pydantic."""
    return read_shape(TwinReference, read_npz(file, TWIN_REFERENCE_FORMAT)[0]["reference"])


def horizon(steps: int, exact: TwinRun, drift: Mapping[str, float], safety: float) -> Horizon:
    """The first steps in which every decision is farther from its boundary than rounding can move it:
    `safety` times the largest drift."""
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
    return Horizon(
        horizon=reached, slack=tuple(slack), limited_by="" if reached == steps else closest[reached]
    )


def rounding_growth(steps: int, exact: TwinRun, scatter: Mapping[str, float]) -> RoundingGrowth:
    """Relative distance of all parameters after each step, and the factor by which it grows per step."""
    distances = []
    for step in range(steps):
        labels = [label for label in scatter if label.startswith(f"{step}/{PARAMETER}/")]
        size = math.sqrt(sum(float((exact.values[label] ** 2).sum()) for label in labels))
        distances.append(math.sqrt(sum(scatter[label] ** 2 for label in labels)) / max(size, 1e-300))
    known = len(distances) > 1 and distances[0] > 0 and math.isfinite(distances[-1])
    factor = (distances[-1] / distances[0]) ** (1 / (steps - 1)) if known else math.nan
    return RoundingGrowth(
        noise=tuple(float(f"{distance:.4g}") for distance in distances),
        growth=None if math.isnan(factor) else float(f"{factor:.4g}"),
    )


def _distance(found: Values | None, exact: Values) -> float:
    if found is None or found.shape != exact.shape or not np.isfinite(found).all():
        return math.inf
    return float(np.linalg.norm(found - exact))


def _farthest(found: tuple[Values, Values] | None, exact: Values) -> float:
    if found is None or found[0].shape != exact.shape:
        return math.inf
    finite = np.isfinite(exact)
    return float(np.abs(found[0][finite] - exact[finite]).max(initial=0.0))


def run_device_twin(case: TwinCase, name: str, reference_file: Path, out: Path) -> TwinDeviceRun:
    """Run the steps on the device, and once more with each fault injected; written to `out`."""
    kind = name.split(":", maxsplit=1)[0]
    if kind != "npu":
        sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
    torch = start_torch(kind)
    _, arrays = read_npz(reference_file, TWIN_REFERENCE_FORMAT)
    exact = {label.removeprefix(EXACT): array for label, array in arrays.items() if label.startswith(EXACT)}
    script = list(arrays[TOKENS])
    reached = int(arrays[HORIZON])
    placement = TensorPlacement(torch=torch, device=name, dtype=getattr(torch, case.dtype))
    started = time.monotonic()

    def errors(steps: int, fault: TwinFault | None = None) -> TwinErrors:
        twin = run_twin(case, placement, script, mode=nullcontext(), steps=steps, fault=fault)
        expected = [label for label in exact if int(label.split("/")[0]) < steps]
        return TwinErrors(
            errors={
                label: json_number(_distance(twin.values[label], exact[label]))
                for label in expected
                if label in twin.values
            },
            missing=tuple(label for label in expected if label not in twin.values),
            tokens=tuple(
                _differing(case.batch(case.prompts(step), script[step]), script[step], twin.tokens[step])
                for step in range(steps)
            ),
        )

    clean = errors(reached)
    run = TwinDeviceRun(
        device=device_facts(name),
        verl=version("verl"),
        path=actor_class().name,
        steps=reached,
        twin=clean,
        faults={fault.id: errors(fault.steps, fault) for fault in TWIN_FAULTS if fault.steps <= reached},
        seconds=round(time.monotonic() - started, 3),
    )
    out.write_text(json.dumps(json_object(run)), encoding="utf-8")
    return run


def _differing(tokens: Arrays, expected: NDArray[np.int64], found: NDArray[np.int64]) -> int:
    """How many responses have a token that differs from that of the reference."""
    is_valid = tokens["attention_mask"][:, PROMPT:] != 0
    return int(((expected != found) & is_valid).any(axis=1).sum())


def _require_registry(case: TwinCase) -> None:
    actor_class()
    registry = getattr(import_module("verl.trainer.ppo.core_algos"), "POLICY_LOSS_REGISTRY", {})
    if case.update.loss_mode not in registry:
        raise NothingSelectedError(
            f"this verl has no registered policy loss {case.update.loss_mode!r}, so clip decisions cannot "
            "be recorded",
            fix="omit the check `twin` for this cell, or use another loss_mode",
        )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.numerics.twin.twin_program", description="a twin run"
    )
    parser.add_argument("--role", choices=("reference", "device"), required=True)
    parser.add_argument("--device", default="npu:0", help="npu:0, cpu, cuda:0")
    parser.add_argument("--reference", type=Path, help="the file that the reference role wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--case", default="{}", help="settings of the case, a JSON object")
    arguments = parser.parse_args(argv)

    def work() -> ProgramFacts:
        case = case_of(json.loads(arguments.case))
        if arguments.role == "reference":
            return compute_twin_reference(case, arguments.out)
        return run_device_twin(case, arguments.device, arguments.reference, arguments.out)

    return run_role(f"{arguments.role} of a twin run", work)


def case_of(settings: Mapping[str, Any]) -> TwinCase:
    """A case with the given `seed`, `steps`, `dtype`, `sampling` and entries of `update`.

    InputError for an unknown dtype, a number of steps below 1, and unknown entries of `update`.
    """
    unknown = sorted({*settings.get("update", {})} - {*vars(UPDATE)})
    if settings.get("dtype", "float32") not in CONTRACTS or int(settings.get("steps", 1)) < 1 or unknown:
        raise InputError(
            "the settings of the twin run are not valid",
            why=f"unknown: {', '.join(unknown)}" if unknown else json.dumps(dict(settings)),
            fix=f"dtype is one of {', '.join(CONTRACTS)}; steps at least 1; update can have "
            f"{', '.join(vars(UPDATE))}",
        )
    own = {name: settings[name] for name in ("seed", "steps", "dtype", "sampling") if name in settings}
    return TwinCase(**own, update=replace(UPDATE, **settings.get("update", {})))


if __name__ == "__main__":
    sys.exit(main())
