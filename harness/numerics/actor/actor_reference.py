"""The update on a CPU in float64: exact values, and how far rounding errors can move each tensor."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.measurements import read_shape
from harness.numerics.actor.actor_case import ActorCase, Arrays
from harness.numerics.actor.actor_measurements import ActorReference, ActorReferenceFacts
from harness.numerics.actor.actor_update import CONTRACTS, TensorPlacement, run_update, start_torch
from harness.numerics.actor.clip_decisions import ClipDecisions
from harness.numerics.actor.tensor_recorder import (
    TensorEvent,
    TensorRecorder,
    TensorValues,
    distances,
    require_comparable,
    tolerances,
)
from harness.numerics.actor.verl_workers import actor_classes
from harness.numerics.loss.cases.loss_case import read_npz, write_npz
from harness.serialisation import json_object

ACTOR_REFERENCE_FORMAT = "npu-matrix-actor-reference/2"
SAMPLES = 8
"""Number of perturbed runs. The largest of eight distances, times the safety factor of two of the contract,
leaves a correct device far below its tolerance, because its errors are not all at their limits at the same
time."""

EXACT, TARGET = "exact:", "target:"
"""Prefixes of the arrays in the file: exact tensors by label, and targets of the update by name."""


@dataclass(frozen=True, kw_only=True)
class ReferenceTensors:
    """exact: float64 values of every tensor by label. targets: the inputs of the update's loss."""

    exact: Mapping[str, NDArray[np.float64]]
    targets: Arrays


def compute_reference(
    out: Path, seed: int, *, compute: str = "float32", path: str = ""
) -> ActorReferenceFacts:
    """Compute exact values and tolerances of every tensor and write them to `out`."""
    sys.modules["torch_npu"] = None  # type: ignore[assignment]
    torch = start_torch()
    # It imports torch, which the host does not have.
    from harness.numerics.arithmetic import stochastic_arithmetic

    started = time.monotonic()
    contract = CONTRACTS[compute]
    case = ActorCase(seed=seed, compute=compute)
    placement = TensorPlacement(torch=torch, device="cpu", dtype=torch.float64)
    exact: TensorValues = {}

    def keep(event: TensorEvent, values: NDArray[np.float64]) -> None:
        exact[event.label] = values

    clips = ClipDecisions(case=case)
    with clips.watched():
        mode = stochastic_arithmetic.exact(contract)
        targets = run_update(case, placement, None, TensorRecorder(sink=keep), mode=mode, path=path)
    unbounded: set[str] = set()

    def measured_tolerances(*, guesses: bool) -> dict[str, float]:
        scatter = dict.fromkeys(exact, 0.0)
        for sample in range(SAMPLES):
            errors: dict[str, float] = {}
            mode = stochastic_arithmetic.perturbed(
                contract, sample, casts=compute != "float32", guesses=guesses
            )
            recorder = TensorRecorder(sink=distances(errors, exact))
            with clips.watched():
                run_update(case, placement, targets, recorder, mode=mode, path=path)
            scatter = {label: max(scatter[label], errors.get(label, np.inf)) for label in scatter}
            unbounded.update(mode.unbounded)
        require_comparable(scatter)
        return tolerances(scatter, exact, contract)

    with_guesses = measured_tolerances(guesses=True)
    strict = measured_tolerances(guesses=False) if unbounded else {}
    facts = ActorReferenceFacts(
        verl=version("verl"),
        torch=str(torch.__version__),
        samples=SAMPLES,
        contract=contract.name,
        paths=tuple(known.name for known in actor_classes()),
        slack=clips.slack(contract.safety),
        unbounded_operators=tuple(sorted(unbounded)),
        frameworks_loaded=tuple(name for name in ("torch_npu",) if sys.modules.get(name) is not None),
        seconds=round(time.monotonic() - started, 3),
    )
    reference = ActorReference(
        facts=facts,
        labels=tuple(exact),
        tolerances=with_guesses,
        strict=strict,
        norms={label: float(np.linalg.norm(values)) for label, values in exact.items()},
    )
    save_reference(out, reference, ReferenceTensors(exact=exact, targets=targets))
    return facts


def save_reference(file: Path, reference: ActorReference, tensors: ReferenceTensors) -> None:
    """Write a reference with its tensors."""
    arrays = {
        **{f"{EXACT}{label}": values for label, values in tensors.exact.items()},
        **{f"{TARGET}{name}": values for name, values in tensors.targets.items()},
    }
    write_npz(file, {"format": ACTOR_REFERENCE_FORMAT, "reference": json_object(reference)}, arrays)


def load_reference(file: Path) -> ActorReference:
    """A reference without its tensors. For the host only, because it imports pydantic."""
    return read_shape(ActorReference, read_npz(file, ACTOR_REFERENCE_FORMAT)[0]["reference"])


def load_tensors(file: Path) -> ReferenceTensors:
    """The tensors of a reference, in the order of computation."""
    _, arrays = read_npz(file, ACTOR_REFERENCE_FORMAT)
    return ReferenceTensors(
        exact={name.removeprefix(EXACT): array for name, array in arrays.items() if name.startswith(EXACT)},
        targets={
            name.removeprefix(TARGET): array for name, array in arrays.items() if name.startswith(TARGET)
        },
    )
