"""The test battery: compares operators of serving engines with plain formulas in float64.

When generation is wrong, it names the operator that is wrong. The tolerance is measured: the formula is
evaluated eight times with every operation perturbed by the error that the numerics contract permits
(`stochastic_arithmetic`). The tolerance is the largest deviation, times the contract's safety factor, plus
the rounding of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch

from harness.numerics.arithmetic import stochastic_arithmetic
from harness.numerics.arithmetic.precision_contract import BF16_APPROXIMATE, FP16_NATIVE, FP32, Contract
from harness.rollout.operators.operator_cases import CASES, OperatorCase
from harness.rollout.operators.operator_inputs import Arguments
from harness.rollout.operators.operator_result import LARGEST_STORED, OperatorMeasurement
from harness.rollout.operators.plain_operators import Values

SAMPLES = 8
"""As in the check `actor`. With eight samples and the contract's safety factor of two, a correct device stays
far below the tolerance."""

CONTRACTS: Mapping[str, Contract] = {"float32": FP32, "bfloat16": BF16_APPROXIMATE, "float16": FP16_NATIVE}


@dataclass(frozen=True, kw_only=True)
class ExpectedValues:
    """The exact results, and the tolerance of each: of its largest element, and of its norm as a vector."""

    values: tuple[Any, ...]
    largest: tuple[float, ...]
    length: tuple[float, ...]


def find_operator(case: OperatorCase) -> Any:
    """The OpOverload that computes the case, None when this cell has no such operator or kernel."""
    if case.through and not _launches_kernels():
        return None
    namespace, _, base = (case.through or case.operator).partition("::")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, case.overload, None)


def _launches_kernels() -> bool:
    """Whether vLLM found Triton; without it vLLM implements the same operators differently."""
    try:
        return bool(import_module("vllm.triton_utils").HAS_TRITON)
    except ImportError:
        return False


def draw(case: OperatorCase, seed: int, dtype: torch.dtype) -> Arguments:
    """The arguments of the case. Floating-point tensors are rounded to `dtype` and stored in float64."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _each(value, lambda x: _rounded(x, dtype)) for name, value in case.draw(generator).items()}


def expected_values(case: OperatorCase, values: Values, dtype: torch.dtype) -> ExpectedValues:
    """The results that the operator must compute for these arguments."""
    exact = case.expected(values)
    if case.exact:
        zero = (0.0,) * len(exact)
        return ExpectedValues(values=exact, largest=zero, length=zero)
    contract = CONTRACTS[str(dtype).removeprefix("torch.")]
    largest, length = [0.0] * len(exact), [0.0] * len(exact)
    for sample in range(SAMPLES):
        with stochastic_arithmetic.perturbed(contract, seed=sample):
            moved = case.expected(_cloned(values))
        for place, (far, true) in enumerate(zip(moved, exact, strict=True)):
            if true.is_floating_point():
                largest[place] = max(largest[place], float((far - true).abs().max()))
                length[place] = max(length[place], float((far - true).norm()))
    units = [contract.unit * true.is_floating_point() for true in exact]
    return ExpectedValues(
        values=exact,
        largest=tuple(
            contract.safety * far + unit * float(true.abs().max())
            for far, unit, true in zip(largest, units, exact, strict=True)
        ),
        length=tuple(
            contract.safety * far + unit * float(true.double().norm())
            for far, unit, true in zip(length, units, exact, strict=True)
        ),
    )


def compute(case: OperatorCase, values: Values, device: str, dtype: torch.dtype) -> Sequence[Any]:
    """The operator's results on the device, as CPU tensors."""
    placed = {
        name: _each(value, partial(_placed, dtype=dtype, device="cpu" if name in case.host else device))
        for name, value in values.items()
    }
    # Engines call operators in this mode. It is also needed to write to views that the simulated device made.
    with torch.inference_mode():
        returned = find_operator(case)(**placed)
    if case.written:
        return [placed[name].cpu() for name in case.written]
    results = returned if isinstance(returned, (tuple, list)) else (returned,)
    return [results[place].cpu() for place in case.results]


def worst_budget(found: Sequence[Any], expected: ExpectedValues) -> float:
    """The largest error in units of the tolerance; infinite for a wrong shape, a NaN or a wrong integer."""
    worst = 0.0
    for result, true, largest, length in zip(
        found, expected.values, expected.largest, expected.length, strict=True
    ):
        if result.shape != true.shape:
            return float("inf")
        if not largest:
            if not torch.equal(result.double(), true.double()):
                return float("inf")
            continue
        error = result.double() - true
        if not bool(torch.isfinite(error).all()):
            return float("inf")
        worst = max(worst, float(error.abs().max()) / largest, float(error.norm()) / length)
    return worst


class Battery:
    """The test battery with its expected values, which take longer to compute than the operators."""

    def __init__(
        self, device: str, dtype: torch.dtype, *, seed: int = 0, cases: Sequence[OperatorCase] = CASES
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.prepared = []
        for case in cases:
            values = draw(case, seed, dtype)
            self.prepared.append((case, values, expected_values(case, values, dtype)))

    def measure(self) -> tuple[OperatorMeasurement, ...]:
        """One result per case: its budget, or why there is none ("absent": the cell has no such operator)."""
        return tuple(self._entry(case, values, expected) for case, values, expected in self.prepared)

    def _entry(self, case: OperatorCase, values: Values, expected: ExpectedValues) -> OperatorMeasurement:
        entry = OperatorMeasurement(
            case=case.name, operator=case.operator, family=case.family, state="absent"
        )
        if find_operator(case) is None:
            return entry
        try:
            found = compute(case, values, self.device, self.dtype)
        except (RuntimeError, NotImplementedError, IndexError, TypeError, AssertionError) as error:
            return replace(entry, state="raised", message=str(error).strip()[:300])
        return replace(entry, state="measured", budget=min(worst_budget(found, expected), LARGEST_STORED))


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return [change(entry) for entry in value]
    return value


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).double() if x.is_floating_point() else x


def _placed(x: torch.Tensor, dtype: torch.dtype, device: str) -> torch.Tensor:
    return (x.to(dtype) if x.is_floating_point() else x.clone()).to(device)


def _cloned(values: Values) -> Arguments:
    return {name: _each(value, torch.clone) for name, value in values.items()}
