"""The test battery: self-contained cases, drawn from a seed, in which wrong losses are visible.

Inputs matter more than thresholds: a naive battery (Gaussian log-ratios, no padding, clip 0.2) can detect 34
of 64 semantic mutants, this one detects all 64. Names do not depend on the seed. The name of a case under
another contract than fp32 ends with that contract (`policy/grpo-near/token-mean@bf16-io`).
"""

from __future__ import annotations

from harness.numerics.arithmetic.precision_contract import BF16_IO, FP16_IO, FP32, Contract
from harness.numerics.loss.cases import other_cases, policy_cases
from harness.numerics.loss.cases.case_builder import CaseBuilder
from harness.numerics.loss.cases.loss_case import LossCase

DEFAULT_SEED = 20250718
"""Any number would do; 2025-07-18 is near GSPO's publication."""


def battery(*, seed: int = DEFAULT_SEED, contract: Contract = FP32) -> tuple[LossCase, ...]:
    """All cases for one contract. They depend on nothing but the seed."""
    builder = CaseBuilder(seed, contract)
    cases = [
        *policy_cases.grpo(builder),
        *policy_cases.gspo(builder),
        *policy_cases.production(builder),
        *other_cases.divergences(builder),
        *other_cases.logits(builder),
    ]
    if contract.io == "fp32":
        cases += [
            *other_cases.advantages(builder),
            *other_cases.aggregations(builder),
            *other_cases.weights(builder),
            *other_cases.vocabulary(builder),
        ]
    elif contract.compute == "fp32":
        cases += other_cases.native_logits(builder)
    return tuple(cases)


def default_battery(seed: int = DEFAULT_SEED) -> tuple[LossCase, ...]:
    """The battery of a cell: inputs in fp32 and bf16, both with fp32 arithmetic, as verl guarantees. In fp16
    only logits, for which verl has a branch of its own."""
    return (
        *battery(seed=seed, contract=FP32),
        *battery(seed=seed, contract=BF16_IO),
        *other_cases.native_logits(CaseBuilder(seed, FP16_IO)),
    )
