"""Weights of the rollout correction: truncated importance sampling and IcePop, per token or per sequence.

w = exp(clip(old_log_prob - rollout_log_prob, -20, 20)), for sequences of the sum over valid tokens, times the
mask. Truncated (TIS; Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
training"): min(w, upper). IcePop (Ling team 2025, "Small leak can sink a great ship"): w if lower <= w <=
upper, otherwise 0. Normalised: divided by the mean over valid tokens, or over sequences with valid tokens. No
gradient flows through a weight.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from harness.numerics.arithmetic.error_bounds import Bounded
from harness.numerics.arithmetic.precision_contract import Mask
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import ExpectedResult, expect_values

CLAMP = 20.0


def weights(case: LossCase) -> ExpectedResult:
    """Expected weights (batch, tokens). Inputs: old_log_prob, rollout_log_prob, response_mask."""
    contract = case.contract
    valid = case.inputs["response_mask"] != 0
    old, rollout = (
        Bounded.exact(np.where(valid, case.inputs[name], 0.0).astype(np.float64), contract)
        for name in ("old_log_prob", "rollout_log_prob")
    )
    log_ratio = old - rollout
    if case.settings["rollout_is"] == "sequence":
        log_ratio = log_ratio.sum(-1, where=valid).column()
    raw = log_ratio.clip(-CLAMP, CLAMP).exp().spread(valid.shape)
    upper = float(case.settings["upper"])
    lower = case.setting("lower")
    if lower is None:
        truncated = raw.clip(high=upper)
        if case.setting("normalised", False):
            counted = "all" if case.setting("empty_weights") == "counted" else "with tokens"
            truncated = truncated / _mean(truncated, valid, str(case.settings["rollout_is"]), counted)
        return expect_values(truncated, valid)
    return _icepop(raw, float(lower), upper, valid)


def _mean(weights: Bounded, valid: Mask, level: str, counted: str) -> Bounded:
    """The mean weight of tokens, or of sequences, whose tokens have the same weight.

    counted: "all" sequences, of which those without tokens have weight 0, or those "with tokens".
    """
    if level == "token":
        return weights.sum(where=valid) / float(valid.sum())
    firsts = np.zeros_like(valid)
    rows = np.flatnonzero(valid.any(axis=1))
    firsts[rows, valid[rows].argmax(axis=1)] = True
    return weights.sum(where=firsts) / float(len(valid) if counted == "all" else len(rows))


def _icepop(raw: Bounded, lower: float, upper: float, valid: Mask) -> ExpectedResult:
    margin = raw.contract.safety * raw.error + 3 * raw.contract.unit * np.maximum(np.abs(raw.value), 1.0)
    is_inside = (raw.value >= lower) & (raw.value <= upper) & valid
    undecided = valid & ((np.abs(raw.value - lower) <= margin) | (np.abs(raw.value - upper) <= margin))
    surely = expect_values(raw, is_inside | undecided)
    return replace(
        surely,
        value=np.where(is_inside, surely.value, 0.0),
        value_low=np.where(undecided, np.minimum(surely.value_low, 0.0), surely.value_low),
    )
