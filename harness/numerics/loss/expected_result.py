"""The intervals in which the results of a correct implementation lie, considering rounding and clip
decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.measurements import read_shape
from harness.numerics.arithmetic.error_bounds import Bounded
from harness.numerics.arithmetic.precision_contract import Array, Mask, round_to
from harness.numerics.loss.cases.loss_case import read_npz, write_npz
from harness.numerics.loss.loss_measurements import LossReferenceFacts
from harness.serialisation import to_json

FORMAT = "npu-matrix-loss-reference/1"


@dataclass(frozen=True, kw_only=True)
class ExpectedGradient:
    """Intervals for a gradient. All arrays have its shape.

    exact: the gradient.
    low, high: the closed interval of each element, rounded to the io format.
    full: the gradient without any clipping.
    tolerance: half-width of the interval before rounding, for `budget`.
    zero: elements that must be exactly zero (padding, certainly clipped).
    undecided: elements whose branch depends on rounding.
    rows: ids; elements with the same id share one decision. None if there are none.
    """

    exact: Array
    low: Array
    high: Array
    full: Array
    tolerance: Array
    zero: Mask
    undecided: Mask
    rows: Array | None = None


@dataclass(frozen=True, kw_only=True)
class ExpectedResult:
    """Intervals for the value and the gradient of one case.

    value, value_low, value_high: shape () for a loss, (batch, tokens) for advantages and weights.
    undecided_share: share of the valid tokens whose clip decision depends on rounding.
    overflow: whether an intermediate does not fit into the compute format.
    """

    value: Array
    value_low: Array
    value_high: Array
    gradient: ExpectedGradient | None = None
    undecided_share: float = 0.0
    overflow: bool = False


@dataclass(frozen=True, kw_only=True)
class Branches:
    """Which tokens pass a gradient.

    active: the branch that depends on the input is taken.
    undecided: rounding may select either branch.
    half: at a floating-point tie `maximum` gives each side half of the gradient, so half of it is also
        correct.
    rows: an id for each token; tokens with the same id share one decision (sequence-level ratios). None if
        there are none.
    """

    active: Mask
    undecided: Mask
    half: Mask
    rows: Array | None = None


def open_branches(valid: Mask) -> Branches:
    """Branches with which every valid token passes its gradient."""
    nothing = np.zeros_like(valid)
    return Branches(active=valid, undecided=nothing, half=nothing)


def expect_loss(loss: Bounded, gradient: Bounded, valid: Mask, branches: Branches) -> ExpectedResult:
    """Expected values of a scalar loss and its gradient."""
    contract = loss.contract
    active = branches.active & valid
    undecided = branches.undecided & valid
    half = branches.half & active & ~undecided
    value_tolerance = _tolerance(loss, 2)
    tolerance = _tolerance(gradient, contract.trailing)
    full = gradient.value
    low = np.where(active, round_to(full - tolerance, contract.io), 0.0)
    high = np.where(active, round_to(full + tolerance, contract.io), 0.0)
    hull_low = np.minimum(round_to(full - tolerance, contract.io), 0.0)
    hull_high = np.maximum(round_to(full + tolerance, contract.io), 0.0)
    low = np.where(undecided, hull_low, low)
    high = np.where(undecided, hull_high, high)
    low = np.where(half, np.minimum(low, round_to(0.5 * full - tolerance, contract.io)), low)
    high = np.where(half, np.maximum(high, round_to(0.5 * full + tolerance, contract.io)), high)
    return ExpectedResult(
        value=loss.value,
        value_low=loss.value - value_tolerance,
        value_high=loss.value + value_tolerance,
        gradient=ExpectedGradient(
            exact=np.where(active, full, 0.0),
            low=low,
            high=high,
            full=full,
            tolerance=tolerance,
            zero=~active & ~undecided,
            undecided=undecided | half,
            rows=branches.rows,
        ),
        undecided_share=float(undecided.sum() / max(int(valid.sum()), 1)),
        overflow=loss.overflow or gradient.overflow,
    )


def expect_values(values: Bounded, valid: Mask) -> ExpectedResult:
    """Expected values of a quantity without a gradient, exactly zero outside `valid`."""
    tolerance = np.where(valid, _tolerance(values, 4), 0.0)
    exact = np.where(valid, values.value, 0.0)
    return ExpectedResult(
        value=exact, value_low=exact - tolerance, value_high=exact + tolerance, overflow=values.overflow
    )


def _tolerance(quantity: Bounded, operations: int) -> Array:
    contract = quantity.contract
    own = quantity.error + operations * contract.unit * np.abs(quantity.value)
    return np.asarray(contract.safety * own + 4 * contract.underflow)


VALUE_ARRAYS = ("value", "value_low", "value_high")
GRADIENT_ARRAYS = ("exact", "low", "high", "full", "tolerance", "zero", "undecided", "rows")


def save_expected(file: Path, expected: Mapping[str, ExpectedResult], facts: LossReferenceFacts) -> None:
    """Write reference intervals by case name. `facts` describe the process that computed them."""
    arrays: dict[str, NDArray[Any]] = {}
    entries = {}
    for number, (name, entry) in enumerate(expected.items()):
        arrays.update({f"{number}.{field}": getattr(entry, field) for field in VALUE_ARRAYS})
        gradient = [field for field in GRADIENT_ARRAYS if getattr(entry.gradient, field, None) is not None]
        arrays.update({f"{number}.{field}": getattr(entry.gradient, field) for field in gradient})
        entries[name] = {
            "number": number,
            "gradient": gradient,
            "undecided_share": entry.undecided_share,
            "overflow": entry.overflow,
        }
    write_npz(file, {"format": FORMAT, "facts": to_json(facts), "expected": entries}, arrays)


def load_expected(file: Path) -> dict[str, ExpectedResult]:
    """Reference intervals by case name; InputError if the file was not written by `save_expected`."""
    index, arrays = read_npz(file, FORMAT)
    expected = {}
    for name, entry in index["expected"].items():
        part = {field: arrays[f"{entry['number']}.{field}"] for field in (*VALUE_ARRAYS, *entry["gradient"])}
        values = {field: part.pop(field) for field in VALUE_ARRAYS}
        expected[name] = ExpectedResult(
            **values,
            gradient=ExpectedGradient(**part) if part else None,
            undecided_share=entry["undecided_share"],
            overflow=entry["overflow"],
        )
    return expected


def load_reference_facts(file: Path) -> LossReferenceFacts:
    """The facts in a file of reference intervals. For the host only, because it imports pydantic."""
    index, _ = read_npz(file, FORMAT)
    return read_shape(LossReferenceFacts, index["facts"])
