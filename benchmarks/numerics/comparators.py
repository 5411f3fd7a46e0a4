"""Rules for telling a right result from a wrong one: ours, and those of others, over the same arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.numerics.arithmetic.precision_contract import round_to
from harness.numerics.loss.candidate import CandidateResult
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import ExpectedResult
from harness.numerics.loss.judge_case import judge
from harness.numerics.loss.loss_measurements import LossStatus

IO = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
RELATIVE_L2 = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 5e-2}
"""A convention of scripts in use, no derivation: it is what ours is compared with."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What every comparator sees: exact result, an fp32 evaluation by another implementation, the case."""

    case: LossCase
    expected: ExpectedResult
    exact: CandidateResult
    baseline: CandidateResult


Comparator = Callable[[Evidence, CandidateResult], bool]


def ours(evidence: Evidence, result: CandidateResult) -> bool:
    """The judge; ill-posed is no failure."""
    return judge(evidence.case, result, evidence.expected).status is not LossStatus.FAIL


def _parts(
    evidence: Evidence, result: CandidateResult
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, str]]:
    io = evidence.case.contract.io
    pairs = [(evidence.exact.value, evidence.baseline.value, result.value, "fp32")]
    if evidence.exact.gradient is not None:
        pairs.append((evidence.exact.gradient, evidence.baseline.gradient, result.gradient, io))
    return [(np.asarray(e), np.asarray(b), np.asarray(r), form) for e, b, r, form in pairs]


def _tensor(array: np.ndarray, form: str) -> Any:
    return torch.from_numpy(round_to(array, form)).to(IO[form])


def assert_close(evidence: Evidence, result: CandidateResult) -> bool:
    """torch.testing.assert_close with its default tolerances for the dtype."""
    try:
        for exact, _, got, form in _parts(evidence, result):
            torch.testing.assert_close(_tensor(got, form), _tensor(exact, form))
    except AssertionError:
        return False
    return True


def relative_l2(evidence: Evidence, result: CandidateResult) -> bool:
    """||got - exact|| <= tolerance * ||exact||."""
    for exact, _, got, form in _parts(evidence, result):
        if not np.isfinite(got).all():
            return False
        if np.linalg.norm(got - exact) > RELATIVE_L2[form] * np.linalg.norm(exact) + 1e-12:
            return False
    return True


def dynamo_same(evidence: Evidence, result: CandidateResult) -> bool:
    """TorchBench's accuracy check."""
    from torch._dynamo.utils import same

    for exact, baseline, got, form in _parts(evidence, result):
        tolerance = 1e-4 if form == "fp32" else 1e-3
        reference = torch.from_numpy(np.array(exact))
        if not same(_tensor(baseline, form), _tensor(got, form), fp64_ref=reference, tol=tolerance):
            return False
    return True


def msprobe() -> Comparator | None:
    """msprobe's acc_check, error only, or None where it cannot be imported."""
    try:
        from msprobe.pytorch.api_accuracy_checker.compare.compare import Comparator as Theirs
        from msprobe.pytorch.api_accuracy_checker.compare.compare_column import CompareColumn
    except Exception as error:  # noqa: BLE001 - whatever keeps it from loading is reported
        warnings.warn(f"msprobe is left out: {error!r}", stacklevel=1)
        return None

    class Stub:
        """Only its decision is wanted; the columns it also fills go to a report."""

        @staticmethod
        def _perform_comparison(*_: Any) -> None:
            return None

    def compare(evidence: Evidence, result: CandidateResult) -> bool:
        for exact, _, got, form in _parts(evidence, result):
            bench = torch.from_numpy(np.array(exact)).to(torch.float64 if form == "fp32" else torch.float32)
            dtype = {"dtype": IO[form], "in_dtype": IO[form]}
            status, _, _ = Theirs._compare_float_tensor(  # noqa: SLF001 - its decision has no public name
                Stub(),
                "loss",
                bench.numpy(),
                _tensor(got, form).to(bench.dtype).numpy(),
                CompareColumn(),
                dtype,
            )
            if status == "error":
                return False
        return True

    return compare


def comparators() -> dict[str, Comparator]:
    """All that can be measured here, ours first."""
    found: dict[str, Comparator] = {
        "ours": ours,
        "assert_close": assert_close,
        "relative L2": relative_l2,
        "dynamo same()": dynamo_same,
    }
    theirs = msprobe()
    return found if theirs is None else {**found, "msprobe acc_check": theirs}
