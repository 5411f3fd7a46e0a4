"""When a wrong result counts: it has to differ by more than the io format hides."""

from __future__ import annotations

import numpy as np

from harness.numerics.arithmetic.precision_contract import FORMATS, round_to
from harness.numerics.loss.candidate import CandidateResult
from harness.numerics.loss.cases.loss_case import LossCase


def differs(case: LossCase, result: CandidateResult, other: CandidateResult) -> bool:
    """Whether two results of a case differ by more than max(1e-4, two unit roundoffs of the io format) in
    relative L2, value or gradient."""
    io = case.contract.io
    threshold = max(1e-4, 2 * FORMATS[io].unit_roundoff)
    pairs = ((result.value, other.value, "fp32"), (result.gradient, other.gradient, io))
    for got, exact, form in pairs:
        if exact is None or got is None:
            continue
        first, second = (round_to(part, form) for part in (got, exact))
        if not np.isfinite(second).all():
            return False
        distance = np.linalg.norm(first - second)
        if not np.isfinite(first).all() or distance > threshold * np.linalg.norm(second):
            return True
    return False
