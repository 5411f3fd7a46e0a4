"""Judges a candidate's result against the reference intervals: pass, fail or ill-posed, with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.arithmetic.precision_contract import Array, Contract
from harness.numerics.loss.candidate import CandidateResult
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import ExpectedGradient, ExpectedResult
from harness.numerics.loss.formulas.loss_reference import reference
from harness.numerics.loss.loss_measurements import LossStatus

MAX_UNDECIDED = 0.2
"""If rounding decides the clipping of a larger share of tokens, the format is too coarse for the loss. The
value is a convention, and no verdict of the battery depends on it: over six seeds its cases have at most 0.05
with fp32 arithmetic. With 16-bit arithmetic they have at most 0.14, or at least 0.30 if the clip range is as
narrow as the distance between numbers."""

HUGE = 1e300

WRONG_SCALES = {"a zero gradient": 0.0, "one that is 10 % too small": 0.9, "one that is 10 % too large": 1.1}
"""Wrong gradients that a tolerance must exclude, as factors of the right one."""

TIE_PARTS = (0.0, 0.5, 1.0)
"""A token passes no gradient, all of it, or half of it at a floating-point tie of `maximum`."""


@dataclass(frozen=True, kw_only=True)
class LossVerdict:
    """The verdict on one result.

    budget: largest error divided by its tolerance, below 1 for correct results; the report shows it over
        time.
    scale: <g, g_ref> / <g_ref, g_ref> over elements whose branch is certain: 1 for a correct gradient, 2 for
        a doubled one, None without a gradient.
    """

    status: LossStatus
    reasons: tuple[str, ...] = ()
    budget: float = 0.0
    scale: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the result is usable."""
        return self.status is LossStatus.PASS


def judge(case: LossCase, result: CandidateResult, expected: ExpectedResult | None = None) -> LossVerdict:
    """Judge `result` for `case`. `expected` is computed with `reference(case)` unless it is passed."""
    if result.unsupported:
        return LossVerdict(status=LossStatus.UNSUPPORTED, reasons=(result.unsupported,))
    if result.error:
        return LossVerdict(status=LossStatus.FAIL, reasons=(result.error,), budget=HUGE)
    intervals = reference(case) if expected is None else expected
    if intervals.overflow:
        reason = f"an intermediate exceeds the range of {case.contract.compute}"
        return LossVerdict(status=LossStatus.ILL_POSED, reasons=(reason,))
    reasons = _shape_reasons(case, result, intervals)
    if reasons:
        return LossVerdict(status=LossStatus.FAIL, reasons=tuple(reasons), budget=HUGE)
    value_reasons, budget = _judge_value(_given(result.value), intervals)
    reasons += value_reasons
    scale: float | None = None
    if intervals.gradient is not None and result.gradient is not None:
        gradient_reasons, gradient_budget, scale = _judge_gradient(
            result.gradient, intervals.gradient, case.contract
        )
        reasons += gradient_reasons
        budget = max(budget, gradient_budget)
    if not reasons and intervals.undecided_share > MAX_UNDECIDED:
        reason = f"{intervals.undecided_share:.0%} of the clip decisions depend on rounding"
        return LossVerdict(status=LossStatus.ILL_POSED, reasons=(reason,), budget=budget, scale=scale)
    blind = [] if reasons or intervals.gradient is None else _wrong_gradients_inside(intervals.gradient)
    if blind:
        reason = f"the tolerance of {case.contract.name} is so wide that it accepts {' and '.join(blind)}"
        return LossVerdict(status=LossStatus.ILL_POSED, reasons=(reason,), budget=budget, scale=scale)
    status = LossStatus.FAIL if reasons else LossStatus.PASS
    return LossVerdict(status=status, reasons=tuple(reasons), budget=budget, scale=scale)


def _shape_reasons(case: LossCase, result: CandidateResult, expected: ExpectedResult) -> list[str]:
    reasons = []
    if np.shape(_given(result.value)) != expected.value.shape:
        reasons.append(f"value has shape {np.shape(_given(result.value))}, not {expected.value.shape}")
    if expected.gradient is None:
        return reasons
    shape = expected.gradient.exact.shape
    if result.gradient is None:
        reasons.append(f"no gradient by {case.gradient_of}")
    elif result.gradient.shape != shape:
        reasons.append(f"gradient has shape {result.gradient.shape}, not {shape}")
    return reasons


def _given(value: NDArray[Any] | float | None) -> NDArray[Any]:
    return np.asarray(np.nan if value is None else value, dtype=np.float64)


def _judge_value(value: Array, expected: ExpectedResult) -> tuple[list[str], float]:
    if not np.isfinite(value).all():
        bad = int((~np.isfinite(value)).sum())
        return [_counted("value is not finite", bad, value.size)], HUGE
    outside = (value < expected.value_low) | (value > expected.value_high)
    half_width = np.maximum(expected.value_high - expected.value_low, 0.0) / 2
    budget = _ratio(np.abs(value - expected.value), half_width)
    if not outside.any():
        return [], min(budget, 1.0)
    worst = _worst(np.abs(value - expected.value) * outside)
    detail = f"got {value[worst]:.9g}, reference {expected.value[worst]:.9g} (+-{half_width[worst]:.2g})"
    return [f"{_counted('value is outside its interval', int(outside.sum()), value.size)}: {detail}"], budget


def _judge_gradient(
    gradient: Array, expected: ExpectedGradient, contract: Contract
) -> tuple[list[str], float, float | None]:
    reasons = []
    finite = np.isfinite(gradient)
    if not finite.all():
        reasons.append(_counted("gradient is not finite", int((~finite).sum()), gradient.size))
    known = np.where(finite, gradient, HUGE)
    leaks = expected.zero & finite & (gradient != 0)
    if leaks.any():
        worst = _worst(np.abs(known) * leaks)
        what = _counted(
            "gradient is not exactly 0 on padding or clipped tokens", int(leaks.sum()), gradient.size
        )
        reasons.append(f"{what}: {gradient[worst]:.3g} at {_position(worst)}")
    outside = ((known < expected.low) | (known > expected.high)) & ~expected.zero & finite
    if outside.any():
        worst = _worst(np.where(outside, np.abs(known - expected.exact), 0.0))
        what = _counted("gradient is outside its interval", int(outside.sum()), gradient.size)
        exact = expected.exact[worst]
        reasons.append(f"{what}: {gradient[worst]:.6g} at {_position(worst)}, reference {exact:.6g}")
    if not reasons:
        reasons += _row_reasons(gradient, expected, contract)
    decided = ~expected.zero & ~expected.undecided
    # The last rounding, to the io format, is always allowed and would hide other errors in 16-bit formats.
    error = np.maximum(np.abs(known - expected.exact) - contract.io_rounding(expected.exact), 0.0)
    budget = _ratio(error[decided], expected.tolerance[decided])
    return reasons, budget, _scale(gradient, expected) if finite.all() else None


def _wrong_gradients_inside(expected: ExpectedGradient) -> list[str]:
    """Which wrong gradients the intervals contain as a whole, if they are made of a gradient that the
    intervals contain. Then a gradient inside of them is no evidence."""
    if not np.where(expected.zero, 0.0, expected.exact).any():
        return []
    wrong = []
    for what, factor in WRONG_SCALES.items():
        overlaps = (factor * expected.high >= expected.low) & (factor * expected.low <= expected.high)
        if bool((overlaps | expected.zero).all()):
            wrong.append(what)
    return wrong


def _row_reasons(gradient: Array, expected: ExpectedGradient, contract: Contract) -> list[str]:
    """Tokens that share one ratio share one clip decision, even if rounding may decide either way."""
    rows = expected.rows
    if rows is None:
        return []
    for row in np.unique(rows[expected.undecided]):
        tokens = (rows == row) & expected.undecided
        full = expected.full[tokens]
        tolerance = expected.tolerance[tokens] + 2 * contract.io_rounding(full)
        if not any((np.abs(gradient[tokens] - part * full) <= tolerance).all() for part in TIE_PARTS):
            return ["tokens of one sequence take different clip decisions though they share one ratio"]
    return []


def _scale(gradient: Array, expected: ExpectedGradient) -> float | None:
    exact = np.where(expected.undecided, 0.0, expected.exact)
    norm = float((exact * exact).sum())
    return float((gradient * exact).sum() / norm) if norm > 0 else None


def _ratio(error: NDArray[Any], tolerance: NDArray[Any]) -> float:
    if error.size == 0:
        return 0.0
    with np.errstate(over="ignore"):
        ratios = np.where(error == 0, 0.0, error / np.maximum(tolerance, 1 / HUGE))
    return float(min(ratios.max(), HUGE))


def _counted(text: str, count: int, size: int) -> str:
    return text if size == 1 else f"{text} ({count} of {size})"


def _worst(error: NDArray[Any]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.unravel_index(int(np.argmax(error)), error.shape))


def _position(index: tuple[int, ...]) -> str:
    return "[" + ", ".join(str(axis) for axis in index) + "]"
