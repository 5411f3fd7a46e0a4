"""Policy losses with gradients in closed form: GRPO (also DAPO, Dr.GRPO), GSPO and GSPO-token.

With d = log_prob - old_log_prob, advantage A, detached rollout weight w and stop-gradient sg:
    GRPO  r = exp(clip(d, -20, 20)), l = max(-A r, -A clip(r, 1-low, 1+high)); for A < 0: l = min(-A c, l)
          (PPO clip: arXiv:1707.06347; dual clip c: arXiv:1912.09729; asymmetric clip, DAPO: arXiv:2503.14476)
    GSPO  s_i = exp(min(10, sum_t m d / L_i)), l_it = max(-A s_i, -A clip(s_i)), no dual clip
          (arXiv:2507.18071, equations 5 to 7); for each token the ratio is
          exp(sg[log s_i] + log_prob - sg[log_prob]) (equation 14), whose gradient is -A_it s_i wherever the
          branch is active
The clamps at 20 and 10 are verl's (`compute_policy_loss_vanilla`, `compute_policy_loss_gspo`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.arithmetic.error_bounds import Bounded, choose, maximum, minimum
from harness.numerics.arithmetic.precision_contract import Array, Mask
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import Branches, ExpectedResult, expect_loss
from harness.numerics.loss.formulas import aggregation

TOKEN_CLAMP = 20.0
SEQUENCE_CLAMP = 10.0


def policy(case: LossCase) -> ExpectedResult:
    """Expected loss and its gradient by `log_prob`.

    Inputs: old_log_prob, log_prob, advantages, response_mask and optionally rollout_is_weights, all (batch,
    tokens). Values on padding are never used.
    """
    contract = case.contract
    valid = case.inputs["response_mask"] != 0
    old, new, advantages = (
        _masked(case.inputs[name], valid) for name in ("old_log_prob", "log_prob", "advantages")
    )
    log_ratio = Bounded.exact(new, contract) - Bounded.exact(old, contract)
    sequence_level = case.settings["loss_mode"] != "vanilla"
    ratio, passes, unsure = (_sequence_ratio if sequence_level else _token_ratio)(log_ratio, valid)
    losses, gradient, branches = _clipped(case, ratio, advantages, dual=not sequence_level)
    branches = _with_clamp(branches, passes, unsure, advantages, sequence_level)
    later = np.abs(ratio.value)
    if "rollout_is_weights" in case.inputs:
        weights = Bounded.exact(_masked(case.inputs["rollout_is_weights"], valid), contract)
        losses, gradient, later = losses * weights, gradient * weights, later * np.abs(weights.value)
    share = aggregation.coefficients(valid, case)
    loss = aggregation.total(losses, share, valid, contract)
    # Autograd multiplies share and advantage first. If that underflows, the ratio multiplies the error.
    gradient = (gradient * share).widened(contract.underflow * later)
    return expect_loss(loss, gradient, valid, branches)


def _masked(array: NDArray[Any], valid: Mask) -> Array:
    return np.where(valid, array, 0.0).astype(np.float64)


def _token_ratio(log_ratio: Bounded, valid: Mask) -> tuple[Bounded, Mask, Mask]:
    contract = log_ratio.contract
    margin = contract.safety * log_ratio.error + 2 * TOKEN_CLAMP * contract.unit
    distance = np.abs(log_ratio.value) - TOKEN_CLAMP
    ratio = log_ratio.clip(-TOKEN_CLAMP, TOKEN_CLAMP).exp()
    return ratio, valid & (distance <= 0), valid & (np.abs(distance) <= margin)


def _sequence_ratio(log_ratio: Bounded, valid: Mask) -> tuple[Bounded, Mask, Mask]:
    contract = log_ratio.contract
    lengths = np.maximum(valid.sum(axis=-1), 1).astype(np.float64)
    mean = log_ratio.sum(-1, where=valid) / Bounded.exact(lengths, contract).widened(contract.unit * lengths)
    margin = contract.safety * mean.error + 2 * SEQUENCE_CLAMP * contract.unit
    distance = mean.value - SEQUENCE_CLAMP
    # verl adds the mean to log_prob - sg[log_prob] before the exponential.
    added = mean.widened(contract.unit * np.abs(mean.value))
    ratio = added.clip(high=SEQUENCE_CLAMP).exp().column().spread(valid.shape)
    passes = valid & (distance <= 0)[:, None]
    return ratio, passes, valid & (np.abs(distance) <= margin)[:, None]


def _clipped(
    case: LossCase, ratio: Bounded, advantages: Array, *, dual: bool
) -> tuple[Bounded, Bounded, Branches]:
    """Token losses, their full gradient by log_prob, and which branch each token takes."""
    contract = case.contract
    low = 1.0 - float(case.settings["clip_ratio_low"])
    high = 1.0 + float(case.settings["clip_ratio_high"])
    negative = Bounded.exact(-advantages, contract)
    unclipped = negative * ratio
    losses = maximum(unclipped, negative * ratio.clip(low, high))
    r = ratio.value
    # Half-width of the zone in which rounding decides: the error of the ratio plus the rounding of the bound.
    zone = contract.safety * ratio.error + 3 * contract.unit * np.maximum(np.abs(r), 1.0)
    gains = advantages > 0
    active = np.where(gains, r <= high, r >= low)
    undecided = np.where(gains, np.abs(r - high) <= zone, np.abs(r - low) <= zone)
    half = np.where(gains, np.abs(r - low) <= zone, np.abs(r - high) <= zone)
    if dual:
        ceiling = float(case.settings["clip_ratio_c"])
        loses = advantages < 0
        losses = choose(loses, minimum(negative * ceiling, losses), losses)
        active &= ~(loses & (r > ceiling))
        undecided |= loses & (np.abs(r - ceiling) <= zone)
    return losses, unclipped, Branches(active=active, undecided=undecided, half=half)


def _with_clamp(
    branches: Branches,
    passes: Mask,
    unsure: Mask,
    advantages: Array,
    sequence_level: bool,
) -> Branches:
    """Add the clamp of the log-ratio. A token whose advantage is zero has gradient zero on every branch."""
    matters = advantages != 0
    rows = None
    if sequence_level:
        sign = np.sign(advantages) + 1
        rows = np.arange(advantages.shape[0])[:, None] * 3.0 + sign
    return Branches(
        active=branches.active & passes & matters,
        undecided=(branches.undecided | unsure) & matters,
        half=branches.half & matters,
        rows=rows,
    )
