"""Values with running error bounds (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3).

Each operation computes a bound of |computed - exact| for *any* evaluation that fulfils the contract. The
final tolerance is therefore the condition number of this very input times the unit roundoff: sums that cancel
get a wide absolute tolerance, tiny gradients a tiny one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from harness.numerics.arithmetic.precision_contract import Array, Contract, Mask

TINY = 1e-300
EXP_ERROR_CAP = 709.0
"""The largest whole number whose exponential fits into float64."""


@dataclass(frozen=True)
class Bounded:
    """An exact `value`, a bound `error` of the distance of a computed value from it, and whether an
    intermediate could overflow."""

    value: Array
    error: Array
    contract: Contract
    overflow: bool = False

    @classmethod
    def exact(cls, value: ArrayLike, contract: Contract) -> Bounded:
        """An input. Its bits are the same on the device, so it has no error."""
        array = np.asarray(value, dtype=np.float64)
        return cls(array, np.zeros_like(array), contract)

    def _of(self, value: Array, error: Array, *others: Bounded) -> Bounded:
        # Written as "not all below", because comparisons with NaN are false.
        too_large = not bool((np.abs(value) + error <= self.contract.largest).all())
        overflow = too_large or self.overflow or any(other.overflow for other in others)
        return Bounded(value, error, self.contract, overflow)

    def _lift(self, other: Bounded | ArrayLike) -> Bounded:
        return other if isinstance(other, Bounded) else Bounded.exact(other, self.contract)

    def __neg__(self) -> Bounded:
        return Bounded(-self.value, self.error, self.contract, self.overflow)

    def __add__(self, other: Bounded | ArrayLike) -> Bounded:
        right = self._lift(other)
        value = self.value + right.value
        return self._of(value, self.error + right.error + self.contract.unit * np.abs(value), right)

    def __sub__(self, other: Bounded | ArrayLike) -> Bounded:
        return self + (-self._lift(other))

    def __mul__(self, other: Bounded | ArrayLike) -> Bounded:
        right = self._lift(other)
        value = self.value * right.value
        error = (
            np.abs(self.value) * right.error
            + np.abs(right.value) * self.error
            + self.error * right.error
            + self.contract.unit * np.abs(value)
        )
        return self._of(value, error + self.contract.underflow, right)

    def __truediv__(self, other: Bounded | ArrayLike) -> Bounded:
        right = self._lift(other)
        value = self.value / np.where(right.value == 0, TINY, right.value)
        smallest = np.maximum(np.abs(right.value) - right.error, TINY)
        error = (self.error + np.abs(value) * right.error) / smallest
        own = self.contract.function_ulp * self.contract.ulp * np.abs(value) + self.contract.underflow
        return self._of(value, error + own, right)

    def exp(self) -> Bounded:
        """e to the value."""
        with np.errstate(over="ignore", invalid="ignore"):
            value = np.exp(self.value)
            ulps = self.contract.exp_ulp + self.contract.exp_ulp_per_unit * np.abs(self.value)
            relative = np.expm1(np.minimum(self.error, EXP_ERROR_CAP)) + ulps * self.contract.ulp
            return self._of(value, value * relative + self.contract.underflow)

    def log(self) -> Bounded:
        """Natural logarithm. The value must be positive."""
        value = np.log(self.value)
        own = self.contract.function_ulp * self.contract.ulp * np.maximum(np.abs(value), 1.0)
        return self._of(value, self.error / np.maximum(self.value - self.error, TINY) + own)

    def sqrt(self) -> Bounded:
        """Square root. |sqrt(x + e) - sqrt(x)| <= min(sqrt(e), e / sqrt(x))."""
        value = np.sqrt(np.maximum(self.value, 0.0))
        smooth = self.error / np.where(value > 0, value, 1.0)
        error = np.where(value > 0, np.minimum(np.sqrt(self.error), smooth), np.sqrt(self.error))
        return self._of(value, error + self.contract.function_ulp * self.contract.ulp * value)

    def clip(self, low: float = -np.inf, high: float = np.inf) -> Bounded:
        """Clamp. An element that is certainly clipped has only the rounding error of the bound itself."""
        margin = self.contract.safety * self.error
        certain = (self.value - margin > high) | (self.value + margin < low)
        bound = np.zeros_like(self.value)
        if np.isfinite(low):
            bound = np.where(self.value <= low, abs(low), bound)
        if np.isfinite(high):
            bound = np.where(self.value >= high, abs(high), bound)
        error = np.where(certain, 0.0, self.error) + self.contract.unit * bound
        return self._of(np.clip(self.value, low, high), error)

    def sum(self, axis: int | None = None, *, where: Mask | None = None) -> Bounded:
        """Sum in any order; the rounding error is `growth` of the contract."""
        chosen = np.ones(self.value.shape, dtype=bool) if where is None else where
        values = np.where(chosen, self.value, 0.0)
        errors = np.where(chosen, self.error, 0.0)
        terms = np.maximum(np.asarray(chosen.sum(axis=axis), dtype=np.float64), 1.0)
        growth = self.contract.growth(terms) * self.contract.unit_sum
        total = np.asarray(values.sum(axis=axis))
        error = (
            errors.sum(axis=axis)
            + growth * np.abs(values).sum(axis=axis)
            + self.contract.unit * np.abs(total)
        )
        return self._of(total, np.asarray(error))

    def column(self) -> Bounded:
        """The same values with a trailing axis, so that one value per row is broadcast over its tokens."""
        return Bounded(self.value[..., None], self.error[..., None], self.contract, self.overflow)

    def spread(self, shape: tuple[int, ...]) -> Bounded:
        """Broadcast to `shape`."""
        return Bounded(
            np.broadcast_to(self.value, shape),
            np.broadcast_to(self.error, shape),
            self.contract,
            self.overflow,
        )

    def widened(self, extra: Array | float) -> Bounded:
        """The same value with `extra` added to its error."""
        return Bounded(self.value, self.error + extra, self.contract, self.overflow)


def maximum(left: Bounded, right: Bounded) -> Bounded:
    """Elementwise maximum, with the error of the branch that is certainly taken."""
    return _selected(left, right, np.maximum(left.value, right.value))


def minimum(left: Bounded, right: Bounded) -> Bounded:
    """Elementwise minimum, with the error of the branch that is certainly taken."""
    return _selected(left, right, np.minimum(left.value, right.value))


def _selected(left: Bounded, right: Bounded, value: Array) -> Bounded:
    decided = np.abs(left.value - right.value) > left.contract.safety * (left.error + right.error)
    taken = np.where(value == left.value, left.error, right.error)
    error = np.where(decided, taken, np.maximum(left.error, right.error))
    return Bounded(value, error, left.contract, left.overflow or right.overflow)


def choose(condition: Mask, yes: Bounded, no: Bounded) -> Bounded:
    """Elementwise selection by a condition that is exact."""
    return Bounded(
        np.where(condition, yes.value, no.value),
        np.where(condition, yes.error, no.error),
        yes.contract,
        yes.overflow or no.overflow,
    )
