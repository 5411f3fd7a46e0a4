"""The update on a CPU in float64: exact values, and how far roundings may take each tensor."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.actor.actor_case import ActorCase
from harness.numerics.actor.actor_update import CONTRACTS, TensorPlacement, run_update, start_torch
from harness.numerics.actor.clip_decisions import ClipDecisions
from harness.numerics.actor.tensor_recorder import (
    TensorEvent,
    TensorRecorder,
    TensorValues,
    distances,
    permitted,
    require_comparable,
)
from harness.numerics.loss.cases.loss_case import write_npz

ACTOR_REFERENCE_FORMAT = "npu-matrix-actor-reference/1"
SAMPLES = 8
"""Perturbed runs. The largest of eight and the contract's safety of two leave a legal device far below: its
errors are not all at their limits at once."""


def compute_reference(out: Path, seed: int, *, compute: str = "float32", path: str = "") -> dict[str, Any]:
    """Exact values and tolerances of every tensor; written to `out`."""
    sys.modules["torch_npu"] = None  # type: ignore[assignment]
    torch = start_torch()
    from harness.numerics.actor.verl_workers import actor_classes
    from harness.numerics.arithmetic import stochastic_arithmetic

    started = time.monotonic()
    contract = CONTRACTS[compute]
    case = ActorCase(seed=seed, compute=compute)
    setting = TensorPlacement(torch=torch, device="cpu", dtype=torch.float64)
    paths = [known.name for known in actor_classes()]
    exact: TensorValues = {}

    def keep(event: TensorEvent, values: NDArray[np.float64]) -> None:
        exact[event.label] = values

    clips = ClipDecisions(case=case)
    with clips.watched():
        mode = stochastic_arithmetic.exact(contract)
        targets = run_update(case, setting, None, TensorRecorder(sink=keep), mode=mode, path=path)
    unmodelled: set[str] = set()

    def tolerances(*, guesses: bool) -> dict[str, float]:
        scatter = dict.fromkeys(exact, 0.0)
        for sample in range(SAMPLES):
            errors: dict[str, float] = {}
            mode = stochastic_arithmetic.perturbed(
                contract, sample, casts=compute != "float32", guesses=guesses
            )
            recorder = TensorRecorder(sink=distances(errors, exact))
            with clips.watched():
                run_update(case, setting, targets, recorder, mode=mode, path=path)
            scatter = {label: max(scatter[label], errors.get(label, np.inf)) for label in scatter}
            unmodelled.update(mode.unmodelled)
        require_comparable(scatter)
        return permitted(scatter, exact, contract)

    index: dict[str, Any] = {"format": ACTOR_REFERENCE_FORMAT, "tolerances": tolerances(guesses=True)}
    if unmodelled:
        index["strict"] = tolerances(guesses=False)
    facts = {
        "verl": version("verl"),
        "torch": torch.__version__,
        "samples": SAMPLES,
        "contract": contract.to_json(),
        "paths": paths,
        "slack": clips.slack(contract.safety),
        "unmodelled": sorted(unmodelled),
        "frameworks_loaded": [name for name in ("torch_npu",) if sys.modules.get(name) is not None],
        "seconds": round(time.monotonic() - started, 3),
    }
    index |= {
        "facts": facts,
        "norms": {label: float(np.linalg.norm(values)) for label, values in exact.items()},
        "labels": list(exact),
        "targets": list(targets),
    }
    arrays: dict[str, NDArray[Any]] = {
        f"exact.{place}": values for place, values in enumerate(exact.values())
    }
    write_npz(out, index, {**arrays, **{f"target.{name}": array for name, array in targets.items()}})
    return facts
