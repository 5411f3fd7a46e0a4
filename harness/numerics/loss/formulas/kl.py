"""Estimators of the KL divergence between the policy and the reference policy (Schulman 2020, "Approximating
KL Divergence"; the names are verl's).

With d = log_prob - ref_log_prob: k1 = d, abs = |d|, k2 = d^2 / 2, k3 = clip(e^x - x - 1, -10, 10) with x =
clip(-d, -20, 20). Gradients by log_prob: 1, sign d, d, and -(e^x - 1) where neither clip applies. A trailing
"+" means the same value with the gradient of k2 (straight-through estimator). The clips and the "+" are those
of verl's `kl_penalty`.
"""

from __future__ import annotations

import numpy as np

from harness.numerics.arithmetic.error_bounds import Bounded
from harness.numerics.arithmetic.precision_contract import Mask
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.expected_result import Branches, ExpectedResult, expect_loss, open_branches
from harness.numerics.loss.formulas import aggregation

ALIASES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
ARGUMENT_CLAMP = 20.0
VALUE_CLAMP = 10.0


def kl(case: LossCase) -> ExpectedResult:
    """Expected aggregated KL loss and its gradient by `log_prob`. Inputs: log_prob, ref_log_prob,
    response_mask."""
    contract = case.contract
    valid = case.inputs["response_mask"] != 0
    new, ref = (
        Bounded.exact(np.where(valid, case.inputs[name], 0.0).astype(np.float64), contract)
        for name in ("log_prob", "ref_log_prob")
    )
    estimator = str(case.settings["kl_penalty"])
    distance = new - ref
    value, gradient, branches = estimate(estimator.rstrip("+"), distance, valid)
    if estimator.endswith("+"):
        gradient, branches = distance, open_branches(valid)
    share = aggregation.coefficients(valid, case)
    loss = aggregation.total(value, share, valid, contract)
    return expect_loss(loss, gradient * share, valid, branches)


def estimate(name: str, distance: Bounded, valid: Mask) -> tuple[Bounded, Bounded, Branches]:
    """The estimator of each token, its gradient by `log_prob`, its branches; ValueError for another name."""
    contract = distance.contract
    kind = ALIASES.get(name, name)
    if kind == "k1":
        return distance, Bounded.exact(np.ones(valid.shape), contract), open_branches(valid)
    if kind == "abs":
        sign = Bounded.exact(np.sign(distance.value), contract)
        return Bounded(np.abs(distance.value), distance.error, contract), sign, open_branches(valid)
    if kind == "k2":
        return distance * distance * 0.5, distance, open_branches(valid)
    if kind == "k3":
        return _k3(distance, valid)
    raise ValueError(f"unknown kl_penalty {name!r}")


def _k3(distance: Bounded, valid: Mask) -> tuple[Bounded, Bounded, Branches]:
    contract = distance.contract
    argument = (-distance).clip(-ARGUMENT_CLAMP, ARGUMENT_CLAMP)
    power = argument.exp()
    raw = power - argument - 1.0
    beyond = np.abs(distance.value) - ARGUMENT_CLAMP
    above = raw.value - VALUE_CLAMP
    argument_margin = contract.safety * distance.error + 2 * ARGUMENT_CLAMP * contract.unit
    value_margin = contract.safety * raw.error + 2 * VALUE_CLAMP * contract.unit
    branches = Branches(
        active=valid & (beyond <= 0) & (above <= 0),
        undecided=(np.abs(beyond) <= argument_margin) | (np.abs(above) <= value_margin),
        half=np.zeros_like(valid),
    )
    # Autograd multiplies e^x by the incoming gradient, and rounds it, before it subtracts that gradient.
    incoming = power.widened(contract.unit * power.value)
    return raw.clip(-VALUE_CLAMP, VALUE_CLAMP), -(incoming - 1.0), branches
