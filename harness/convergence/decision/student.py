"""Student's t distribution: tail probabilities and quantiles.

SciPy has both, but importing it takes 0.2 seconds, which every `npu-matrix status` would spend.
"""

from __future__ import annotations

import functools
import math

from harness.convergence.decision.decision_rule import BOTH_SIDES

#: The continued fraction ends when the next factor differs from 1 by no more than rounding.
_CONVERGED = 2e-16
_MOST_TERMS = 500
#: Replaces a denominator of 0.
_TINY = 1e-300


def student_tail(t: float, sides: int, freedom: int) -> float:
    """Student tail probability: of |t| or more if `sides` is 2, of t or more if it is 1."""
    both = _regularised_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    if sides == BOTH_SIDES:
        return both
    return both / 2 if t >= 0 else 1 - both / 2


@functools.cache
def student_quantile(share: float, freedom: int) -> float:
    """The value below which `share` of the distribution lies; 0 < share < 1."""
    if share < 0.5:
        return -student_quantile(1 - share, freedom)
    low, high = 0.0, 1.0
    while student_tail(high, 1, freedom) > 1 - share:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        if student_tail(middle, 1, freedom) > 1 - share:
            low = middle
        else:
            high = middle
    return high


def _regularised_beta(a: float, b: float, x: float) -> float:
    """I_x(a, b) by its continued fraction (Press et al., *Numerical Recipes*, 3rd ed. 2007, section 6.4)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _regularised_beta(b, a, 1 - x)
    factor = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    # Lentz's method: `above` and `below` are ratios of successive numerators and inverse denominators.
    above, below = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    fraction = below
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            below = 1 / _nonzero(1 + term * below)
            above = _nonzero(1 + term / above)
            fraction *= above * below
        if abs(above * below - 1) < _CONVERGED:
            break
    return factor * fraction / a


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
