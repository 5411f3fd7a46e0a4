"""Aggregates a matrix of token losses to a scalar: d(loss)/d(token loss) of every aggregation mode.

The modes and their names are those of verl's `agg_loss`. With mask m, L_i = sum_t m_it, N = sum m, S = #{i:
L_i > 0}, horizon H and data-parallel size d:
    token-mean               m / N * d
    token-sum                m * d
    seq-mean-token-sum       m / S * d
    seq-mean-token-mean      m / (L_i S) * d
    seq-mean-token-sum-norm  m / (S H) * d
N and S are those of the micro-batch unless the settings contain those of the global batch. A sequence without
tokens contributes nothing and is not counted in S. A batch without tokens has loss 0 and gradient 0.

Some older releases compute something else, which three settings describe (see `release_objectives`): with
`sum_norm` "horizon" the factor 1/S is omitted (verl up to 0.7.0), with `empty_rows` "counted" S is the number
of rows (up to 0.6.0). With `dp_size_divides`, d is 1 divided by the data-parallel size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.arithmetic.error_bounds import Bounded
from harness.numerics.arithmetic.precision_contract import Array, Contract, Mask
from harness.numerics.loss.cases.loss_case import LossCase

MODES = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)

OPERATIONS_OF = {
    "token-mean": 3,
    "token-sum": 1,
    "seq-mean-token-sum": 3,
    "seq-mean-token-mean": 5,
    "seq-mean-token-sum-norm": 4,
}
"""Rounded operations between a token loss and its share of the scalar: the length and the division by it,
the count, the dp factor, and the 1e-8 that implementations add to a denominator (at most half a unit
roundoff)."""


def coefficients(mask: NDArray[Any], case: LossCase) -> Bounded:
    """d(loss)/d(token loss) for each token, shape (batch, tokens), zero on padding.

    ValueError for an unknown `loss_agg_mode`.
    """
    mode = case.setting("loss_agg_mode", "token-mean")
    exact = _exact(np.asarray(mask, dtype=np.float64), case, mode)
    operations = OPERATIONS_OF[mode]
    contract = case.contract
    largest = max(
        float(case.setting("batch_num_tokens", mask.sum())),
        float(case.setting("loss_scale_factor", mask.shape[-1])),
    )
    overflow = largest > contract.largest
    return Bounded(exact, operations * contract.unit * np.abs(exact), contract, overflow)


def _exact(mask: Array, case: LossCase, mode: str) -> Array:
    lengths = mask.sum(axis=-1)
    counted = lengths.size if case.setting("empty_rows") == "counted" else int((lengths > 0).sum())
    tokens = float(case.setting("batch_num_tokens", max(mask.sum(), 1.0)))
    sequences = float(case.setting("global_batch_size", max(counted, 1)))
    horizon = float(case.setting("loss_scale_factor", mask.shape[-1]))
    share = 1.0 if case.setting("sum_norm") == "horizon" else sequences
    denominators: dict[str, Array | float] = {
        "token-mean": tokens,
        "token-sum": 1.0,
        "seq-mean-token-sum": sequences,
        "seq-mean-token-mean": np.maximum(lengths, 1.0)[:, None] * sequences,
        "seq-mean-token-sum-norm": horizon * share,
    }
    if mode not in denominators:
        raise ValueError(f"unknown loss_agg_mode {mode!r}; known: {', '.join(MODES)}")
    size = float(case.setting("dp_size", 1))
    factor = (1 / size if case.setting("dp_size_divides") else size) * float(case.setting("scale", 1.0))
    return np.asarray(mask / denominators[mode] * factor)


def total(token_losses: Bounded, weights: Bounded, valid: Mask, contract: Contract) -> Bounded:
    """The scalar loss: the weighted sum over valid tokens.

    An implementation may apply the factors of the mode before or after the sum, so their rounding errors are
    relative to the sum of magnitudes.
    """
    shares = token_losses * weights
    rounding = np.where(valid, np.abs(shares.value), 0.0).sum()
    relative = np.where(
        weights.value != 0, weights.error / np.where(weights.value == 0, 1.0, np.abs(weights.value)), 0.0
    )
    loss = shares.sum(where=valid).widened(float(relative.max(initial=0.0)) * rounding + contract.underflow)
    return replace(loss, overflow=loss.overflow or token_losses.sum(where=valid).overflow)
