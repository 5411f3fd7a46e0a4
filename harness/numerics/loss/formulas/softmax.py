"""Entropy and log-probability of logits, with gradients by the logits.

With p = softmax(x): H = logsumexp(x) - sum p x and dH/dx = -p (x - sum p x); log p_y = x_y - logsumexp(x) and
its gradient by x is onehot(y) - p. Both follow from the definition of the softmax; verl computes them in
`entropy_from_logits` and `logprobs_from_logits`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.numerics.arithmetic.error_bounds import Bounded
from harness.numerics.arithmetic.precision_contract import FORMATS, Mask
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import Branches, ExpectedResult, expect_loss, open_branches
from harness.numerics.loss.formulas import aggregation


def entropy(case: LossCase) -> ExpectedResult:
    """Expected aggregated entropy and its gradient by `logits` (batch, tokens, vocabulary)."""
    logits, valid = _logits(case)
    value, gradient = entropies(logits)
    share = aggregation.coefficients(valid, case)
    loss = aggregation.total(value, share, valid, case.contract)
    return expect_loss(loss, gradient * share.column(), *_open(valid, logits.value.shape))


def entropies(logits: Bounded) -> tuple[Bounded, Bounded]:
    """The entropy of each row of logits (..., vocabulary), and its gradient by the logits."""
    contract = logits.contract
    normaliser, probability = _log_sum_exp(logits)
    mean = (probability * logits).sum(-1)
    gradient = -(probability * (logits - mean.column()))
    # Autograd computes p twice, with softmax and with exp(x - logsumexp), and subtracts one from the other.
    terms = (
        6 * np.abs(logits.value)
        + 6 * np.abs(normaliser.value)[..., None]
        + 6 * np.abs(mean.value)[..., None]
        + 8
    )
    return normaliser - mean, gradient.widened(probability.value * contract.unit * terms)


def logprob(case: LossCase) -> ExpectedResult:
    """Expected weighted sum of the log-probabilities of `labels` and its gradient by `logits`.

    `weights` (batch, tokens) multiply the log-probabilities and stand for the incoming gradient of a policy
    loss. With the setting `native`, log-probabilities have the format of the logits.
    """
    logits, valid = _logits(case)
    value, gradient = log_probs(logits, case.inputs["labels"])
    if case.setting("native", False):
        value, gradient = _native(logits, value, gradient)
    weights = Bounded.exact(np.where(valid, case.inputs["weights"], 0.0).astype(np.float64), case.contract)
    loss = (value * weights).sum(where=valid)
    return expect_loss(loss, gradient * weights.column(), *_open(valid, logits.value.shape))


def _native(logits: Bounded, value: Bounded, gradient: Bounded) -> tuple[Bounded, Bounded]:
    """Log-probabilities that log_softmax rounds to the format of the logits, and their gradient, which it
    computes from all of them and from a rounded incoming gradient."""
    contract = logits.contract
    unit = FORMATS[contract.io].unit_roundoff
    normaliser, probability = _log_sum_exp(logits)
    every = np.abs(logits.value - normaliser.value[..., None])
    of_probability = probability.value * np.expm1(unit * every)
    return (
        value.widened(unit * np.abs(value.value)),
        gradient.widened(of_probability + unit * np.abs(gradient.value)),
    )


def log_probs(logits: Bounded, labels: NDArray[np.int64]) -> tuple[Bounded, Bounded]:
    """The log-probability of the label of each row of logits (..., vocabulary), and its gradient by the
    logits."""
    contract = logits.contract
    index = labels[..., None]
    normaliser, probability = _log_sum_exp(logits)
    chosen = Bounded(
        np.take_along_axis(logits.value, index, axis=-1)[..., 0],
        np.take_along_axis(logits.error, index, axis=-1)[..., 0],
        contract,
    )
    one_hot = np.zeros_like(logits.value)
    np.put_along_axis(one_hot, index, 1.0, axis=-1)
    terms = 2 * np.abs(logits.value) + 2 * np.abs(normaliser.value)[..., None] + 4
    wide = probability.widened(probability.value * contract.unit * terms)
    return chosen - normaliser, Bounded.exact(one_hot, contract) - wide


def _logits(case: LossCase) -> tuple[Bounded, Mask]:
    valid = case.inputs["response_mask"] != 0
    logits = np.where(valid[..., None], case.inputs["logits"], 0.0).astype(np.float64)
    return Bounded.exact(logits, case.contract), valid


def _open(valid: Mask, shape: tuple[int, ...]) -> tuple[Mask, Branches]:
    spread = np.broadcast_to(valid[..., None], shape)
    return spread, open_branches(spread)


def _log_sum_exp(logits: Bounded) -> tuple[Bounded, Bounded]:
    largest = logits.value.max(axis=-1)
    powers = (logits - largest[..., None]).exp()
    total = powers.sum(-1)
    return Bounded.exact(largest, logits.contract) + total.log(), powers / total.column()
