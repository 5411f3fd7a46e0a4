"""Parts of metamorphic relations: evaluation of a candidate on generated and changed cases, and distances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.arithmetic.precision_contract import FP32, Array
from harness.numerics.loss.candidate import Candidate, CandidateResult, UnsupportedCaseError, evaluate_one
from harness.numerics.loss.cases import case_inputs
from harness.numerics.loss.cases.loss_case import LossCase

TOLERANCE = 2.0**-16
"""256 unit roundoffs of fp32. Two legal evaluations of one loss differ by about (40 operations, exponent
error below 10 ulp, sums of 512 terms in 16 lanes: 5 * sqrt(37) + 2) 95 unit roundoffs each, at worst."""

BATCH, TOKENS = 8, 24


@dataclass(frozen=True, kw_only=True)
class ValueAndGradient:
    """A value with its gradient, and the size to which differences are relative."""

    value: float
    gradient: Array

    @property
    def size(self) -> float:
        """Sum of magnitudes, which stays large if the terms of the value cancel."""
        return max(abs(self.value), float(np.abs(self.gradient).sum()), 1e-30)


@dataclass(frozen=True, kw_only=True)
class Violation:
    """How far a candidate is from fulfilling a relation. `broken`: rounding cannot explain it.

    why: why the candidate gave no usable result, "" if it gave one.
    """

    relation: str
    amount: float
    why: str = ""

    @property
    def broken(self) -> bool:
        """Whether the relation does not hold."""
        return not self.amount <= TOLERANCE


class UnusableResultError(Exception):
    """A candidate raised an exception or returned something of another shape; the message says what."""


class Probe:
    """Evaluates a candidate on generated policy cases."""

    def __init__(self, candidate: Candidate, seed: int) -> None:
        self.candidate = candidate
        self.rng = np.random.default_rng(seed)

    def policy(self, loss_mode: str, mode: str, *, spread: float = 0.1, **settings: Any) -> LossCase:
        """A policy case with an empty row, a one-token row and a full one."""
        mask = case_inputs.mask(self.rng, BATCH, TOKENS, "edge")
        old = case_inputs.old_log_probs(self.rng, BATCH, TOKENS)
        drift = case_inputs.row_drift(self.rng, BATCH, TOKENS, spread, spread)
        arrays: dict[str, NDArray[Any]] = {
            "old_log_prob": old,
            "log_prob": old + drift,
            "advantages": case_inputs.advantages(self.rng, BATCH, TOKENS, "sequence"),
            "response_mask": mask,
        }
        defaults = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.08, "clip_ratio_c": 3.0}
        return LossCase(
            name="metamorphic",
            operation="policy",
            contract=FP32,
            inputs=case_inputs.for_device(FP32, arrays),
            gradient_of="log_prob",
            settings={"loss_mode": loss_mode, "loss_agg_mode": mode, **defaults, **settings},
            requires=(loss_mode, *(("global_denominators",) if "batch_num_tokens" in settings else ())),
        )

    def run(self, case: LossCase) -> ValueAndGradient:
        """Value and gradient; UnusableResultError if one is missing. UnsupportedCaseError is not caught."""
        result = self._result(case)
        assert case.gradient_of is not None
        gradient = _shaped("gradient", result.gradient, case.inputs[case.gradient_of].shape)
        return ValueAndGradient(value=float(_shaped("value", result.value, ())), gradient=gradient)

    def value(self, case: LossCase) -> Array:
        """An array-valued result, of batch x tokens."""
        return _shaped("value", self._result(case).value, case.inputs["response_mask"].shape)

    def _result(self, case: LossCase) -> CandidateResult:
        result = evaluate_one(self.candidate, case)
        if result.unsupported:
            raise UnsupportedCaseError(result.unsupported)
        if result.error:
            raise UnusableResultError(result.error)
        return result


def _shaped(name: str, part: NDArray[Any] | float | None, shape: tuple[int, ...]) -> Array:
    if part is None:
        raise UnusableResultError(f"returned no {name}")
    array = np.asarray(part, dtype=np.float64)
    if array.shape != shape:
        raise UnusableResultError(f"{name} has shape {array.shape}, not {shape}")
    return array


def changed(case: LossCase, **arrays: NDArray[Any]) -> LossCase:
    """The case with some inputs replaced, as float32."""
    converted = {
        name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()
    }
    return replace(case, inputs={**case.inputs, **converted})


def rearranged(case: LossCase, function: Callable[[NDArray[Any]], NDArray[Any]]) -> LossCase:
    """The case with one function applied to every input."""
    return replace(case, inputs={name: function(array) for name, array in case.inputs.items()})


def relative_difference(first: ValueAndGradient, second: ValueAndGradient) -> float:
    """Largest difference of values or gradient elements, relative to the sums of magnitudes."""
    size = max(first.size, second.size)
    largest = max(
        float(np.abs(first.gradient).max(initial=0)), float(np.abs(second.gradient).max(initial=0)), 1e-30
    )
    gradients = float(np.abs(first.gradient - second.gradient).max(initial=0)) / largest
    return finite(max(abs(first.value - second.value) / size, gradients))


def finite(amount: float) -> float:
    """The amount, or infinity if it is not finite."""
    return amount if np.isfinite(amount) else np.inf


def scaled(outcome: ValueAndGradient, factor: float) -> ValueAndGradient:
    """Value and gradient times `factor`."""
    return ValueAndGradient(value=outcome.value * factor, gradient=outcome.gradient * factor)
