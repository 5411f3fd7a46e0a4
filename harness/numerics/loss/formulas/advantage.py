"""Outcome advantages of GRPO (arXiv:2402.03300, section 4.1.2) and of Dr.GRPO, which does not divide by the
standard deviation (arXiv:2503.20783)."""

from __future__ import annotations

import numpy as np

from harness.numerics.arithmetic.error_bounds import Bounded
from harness.numerics.arithmetic.precision_contract import Array
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import ExpectedResult, expect_values

EPSILON = 1e-6
"""Added to the standard deviation by verl (`compute_grpo_outcome_advantage`); TRL adds 1e-4."""


def advantage(case: LossCase) -> ExpectedResult:
    """Expected advantages (batch, tokens): (r - mean) / (std + epsilon) in each group, times the mask.

    Inputs: rewards (batch,), index (batch,) with group ids, response_mask (batch, tokens). The standard
    deviation is that of a sample (ddof 1); for a group of one response the mean is 0 and the deviation 1. If
    all rewards of a group are equal, the advantage must be 0 to within the unit roundoff of an advantage of
    size one, whatever the rounding error of the mean. The condition number of the formula (1 / epsilon) would
    allow any value there.
    """
    rewards = case.inputs["rewards"].astype(np.float64)
    index = case.inputs["index"]
    value, error = np.zeros_like(rewards), np.zeros_like(rewards)
    overflow = False
    for group in np.unique(index):
        members = np.flatnonzero(index == group)
        result = _group(rewards[members], case)
        value[members], error[members] = result.value, result.error
        overflow |= result.overflow
    mask = case.inputs["response_mask"].astype(np.float64)
    bounded = Bounded(value[:, None] * mask, error[:, None] * mask, case.contract, overflow)
    return expect_values(bounded, mask != 0)


def _group(rewards: Array, case: LossCase) -> Bounded:
    contract = case.contract
    divided = bool(case.setting("norm_adv_by_std_in_grpo", True))
    epsilon = float(case.setting("epsilon", EPSILON))
    scores = Bounded.exact(rewards, contract)
    if rewards.size == 1:
        return scores / Bounded.exact(1.0 + epsilon, contract).widened(contract.unit) if divided else scores
    if np.ptp(rewards) == 0.0:
        # `safety` is applied again when the interval is computed.
        return Bounded(
            np.zeros_like(rewards), np.full_like(rewards, contract.unit / contract.safety), contract
        )
    mean = scores.sum() / float(rewards.size)
    centred = scores - mean.spread(rewards.shape)
    if not divided:
        return centred
    deviation = ((centred * centred).sum() / float(rewards.size - 1)).sqrt() + epsilon
    # A square root is never negative, so the divisor is never smaller than the rounded epsilon.
    capped = np.minimum(deviation.error, deviation.value - epsilon * (1 - contract.unit))
    return centred / Bounded(deviation.value, capped, contract, deviation.overflow).spread(rewards.shape)
