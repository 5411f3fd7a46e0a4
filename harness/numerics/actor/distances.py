"""How far recorded tensors are from exact ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from harness.errors import InfrastructureError
from harness.numerics.actor.recorder import Event, Sink
from harness.numerics.arithmetic.contract import Contract

Values = dict[str, NDArray[np.float64]]


def distances(errors: dict[str, float], exact: Mapping[str, NDArray[np.float64]]) -> Sink:
    """A sink that keeps only the distance from the exact values; infinite without a counterpart."""

    def measure(event: Event, values: NDArray[np.float64]) -> None:
        wanted = exact.get(event.label)
        if wanted is None or wanted.shape != values.shape or not np.isfinite(values).all():
            errors[event.label] = np.inf
        else:
            errors[event.label] = float(np.linalg.norm(values - wanted))

    return measure


def require_comparable(scatter: Mapping[str, float]) -> None:
    """InfrastructureError when a perturbed run lacks a tensor or has another shape: no tolerance follows from
    that, and an infinite one would let everything pass."""
    strange = [label for label, distance in scatter.items() if not np.isfinite(distance)]
    if strange:
        raise InfrastructureError(
            "a perturbed run of the reference is not comparable with the exact one",
            why=f"{len(strange)} tensors are missing, misshapen or not finite, such as {strange[0]}",
            fix="use another seed; if that does not help, report it with the reference's log",
        )


def permitted(
    scatter: Mapping[str, float], exact: Mapping[str, NDArray[np.float64]], contract: Contract
) -> dict[str, float]:
    """By label how far a device may be: the farthest that perturbed runs go (`scatter`), times the contract's
    safety, and one rounding of the exact tensor."""
    return {
        label: contract.safety * scatter[label] + contract.unit * float(np.linalg.norm(values))
        for label, values in exact.items()
    }


def json_number(error: float) -> float | None:
    """JSON has no infinity: None is a tensor that is missing, misshapen or not finite."""
    return float(f"{error:.6g}") if np.isfinite(error) else None
