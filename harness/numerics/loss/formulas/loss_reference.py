"""The float64 reference: numpy only, gradients in closed form, no code shared with torch, its autograd or
verl."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from harness.numerics.arithmetic.error_bounds import Bounded
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import ExpectedResult, expect_loss, open_branches
from harness.numerics.loss.formulas import aggregation
from harness.numerics.loss.formulas.advantage import advantage
from harness.numerics.loss.formulas.kl import kl
from harness.numerics.loss.formulas.policy_loss import policy
from harness.numerics.loss.formulas.rollout_weights import weights
from harness.numerics.loss.formulas.softmax import entropy, logprob


def aggregate(case: LossCase) -> ExpectedResult:
    """Expected aggregate of a given matrix and its gradient. Inputs: losses, response_mask (batch, tokens).
    The formulas and their source are in `aggregation`."""
    valid = case.inputs["response_mask"] != 0
    losses = Bounded.exact(np.where(valid, case.inputs["losses"], 0.0).astype(np.float64), case.contract)
    share = aggregation.coefficients(valid, case)
    loss = aggregation.total(losses, share, valid, case.contract)
    return expect_loss(loss, share, valid, open_branches(valid))


REFERENCES: Mapping[str, Callable[[LossCase], ExpectedResult]] = {
    "policy": policy,
    "aggregation": aggregate,
    "kl": kl,
    "advantage": advantage,
    "entropy": entropy,
    "logprob": logprob,
    "weights": weights,
}


def reference(case: LossCase) -> ExpectedResult:
    """The intervals for the results of a correct implementation of `case`; KeyError for an unknown operation
    or a missing setting."""
    return REFERENCES[case.operation](case)
