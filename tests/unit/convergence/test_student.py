"""Student's t distribution, compared with SciPy 1.15 (`scipy.special.stdtr` and `stdtrit`)."""

from __future__ import annotations

import pytest

from harness.convergence.decision.decision_rule import BOTH_SIDES, HIGH_IS_BAD
from harness.convergence.decision.student import student_quantile, student_tail


@pytest.mark.parametrize(
    ("t", "freedom", "both_sides", "one_side"),
    [
        (0.5, 1, 0.7048327646991335, 0.35241638234956674),
        (2.262, 9, 0.05001284550245463, 0.025006422751227313),
        (-1.0, 9, 0.3434363961379136, 0.8282818019310432),
        (40.0, 4, 2.3340163226012678e-06, 1.1670081613006339e-06),
        (6.0, 30, 1.3942768767204764e-06, 6.971384383602382e-07),
    ],
)
def test_tail(t: float, freedom: int, both_sides: float, one_side: float) -> None:
    assert student_tail(t, BOTH_SIDES, freedom) == pytest.approx(both_sides, rel=1e-11)
    assert student_tail(t, HIGH_IS_BAD, freedom) == pytest.approx(one_side, rel=1e-11)


@pytest.mark.parametrize(
    ("share", "freedom", "t"),
    [
        (0.05, 1, -6.313751514675044),
        (0.95, 9, 1.833112932656237),
        (0.995, 9, 3.249835541592126),
        (0.9995, 2, 31.599054576445365),
        (0.975, 100, 1.9839715185235518),
    ],
)
def test_quantile(share: float, freedom: int, t: float) -> None:
    assert student_quantile(share, freedom) == pytest.approx(t, rel=1e-11)
