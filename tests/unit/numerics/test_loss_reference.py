"""The reference agrees with hand-computed numbers and finite differences, also in edge cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plain_losses import PlainCandidate

from harness.numerics.arithmetic.precision_contract import FP32, Contract
from harness.numerics.loss.cases.loss_battery import battery
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.formulas.advantage import EPSILON
from harness.numerics.loss.formulas.loss_reference import reference

FP64 = Contract(name="fp64", io="fp64", compute="fp64", accumulate="fp64")
ROUNDED = 3 * FP32.unit
"""Log-ratios of at most 3 are stored in fp32, so a ratio has this relative error."""

BASE = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean"}


def policy(log_ratio, advantages, mask=None, **settings) -> LossCase:
    ratio = np.atleast_2d(np.asarray(log_ratio, dtype=np.float32))
    valid = np.ones_like(ratio) if mask is None else np.atleast_2d(np.asarray(mask, dtype=np.float32))
    return LossCase(
        name="hand",
        operation="policy",
        contract=FP32,
        inputs={
            "old_log_prob": np.zeros_like(ratio),
            "log_prob": ratio,
            "advantages": np.atleast_2d(np.asarray(advantages, dtype=np.float32)),
            "response_mask": valid,
        },
        gradient_of="log_prob",
        settings={"loss_mode": "vanilla", **BASE, **settings},
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 1.0, -1.28, 0.0),  # clipped above
        (0.5, 1.0, -0.5, -0.5),  # below the range an advantage is not clipped
        (0.5, -1.0, 0.8, 0.0),  # clipped below
        (1.5, -1.0, 1.5, 1.5),
        (5.0, -1.0, 3.0, 0.0),  # dual clip
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_one_token_of_grpo(ratio, advantage, loss, gradient):
    expected = reference(policy([np.log(ratio)], [advantage]))
    assert expected.value == pytest.approx(loss, rel=ROUNDED)
    assert expected.gradient.exact[0, 0] == pytest.approx(gradient, rel=ROUNDED)


def test_gspo_uses_the_mean_log_ratio_of_the_sequence_and_has_no_dual_clip():
    expected = reference(policy([0.3, 0.1, 9.0], [-1.0, -1.0, -1.0], [1, 1, 0], loss_mode="gspo"))
    ratio = np.exp(0.2)
    assert expected.value == pytest.approx(ratio, rel=ROUNDED)
    assert expected.gradient.exact[0] == pytest.approx([ratio / 2, ratio / 2, 0.0], rel=ROUNDED)
    far = reference(policy([3.0], [-1.0], loss_mode="gspo"))
    assert far.value == pytest.approx(np.exp(3.0), rel=ROUNDED)


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({"loss_agg_mode": "token-mean"}, [1 / 4, 1 / 4]),
        ({"loss_agg_mode": "token-sum"}, [1.0, 1.0]),
        ({"loss_agg_mode": "seq-mean-token-sum"}, [1 / 2, 1 / 2]),
        ({"loss_agg_mode": "seq-mean-token-mean"}, [1 / 6, 1 / 2]),
        ({"loss_agg_mode": "seq-mean-token-sum-norm"}, [1 / 8, 1 / 8]),
        ({"loss_agg_mode": "seq-mean-token-sum-norm", "sum_norm": "horizon"}, [1 / 4, 1 / 4]),
        ({"loss_agg_mode": "seq-mean-token-sum", "empty_rows": "counted"}, [1 / 3, 1 / 3]),
        ({"loss_agg_mode": "token-mean", "batch_num_tokens": 100, "dp_size": 2}, [2 / 100, 2 / 100]),
        ({"loss_agg_mode": "seq-mean-token-mean", "global_batch_size": 10}, [1 / 30, 1 / 10]),
        ({"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 50}, [1 / 100, 1 / 100]),
        ({"loss_agg_mode": "token-mean", "scale": 0.5}, [1 / 8, 1 / 8]),
    ],
)
def test_weight_of_a_token_in_rows_of_three_one_and_no_tokens(settings, shares):
    mask = np.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    case = policy(np.zeros((3, 4)), -np.ones((3, 4)), mask, **settings)
    gradient = reference(case).gradient.exact
    assert gradient[:2, 0] == pytest.approx(shares)
    assert not gradient[mask == 0].any()


def test_an_unknown_aggregation_is_refused():
    with pytest.raises(ValueError, match="token-median"):
        reference(policy([0.0], [1.0], loss_agg_mode="token-median"))


def test_padding_never_enters_whatever_it_holds():
    clean = policy([[0.1, 0.0]], [[1.0, 0.0]], [[1, 0]])
    dirty = policy([[0.1, np.nan]], [[1.0, np.inf]], [[1, 0]])
    assert reference(dirty).value == reference(clean).value
    assert reference(dirty).gradient.zero[0, 1]


def test_an_empty_batch_has_loss_and_gradient_zero():
    expected = reference(policy(np.ones((2, 3)), np.ones((2, 3)), np.zeros((2, 3))))
    assert expected.value == 0.0
    assert expected.gradient.zero.all()


DIFFERENTIABLE = [
    case for case in battery(seed=3) if case.gradient_of and case.inputs[case.gradient_of].size <= 2048
]


@pytest.mark.parametrize("case", DIFFERENTIABLE, ids=lambda case: case.name)
def test_closed_form_gradients_agree_with_the_plain_candidate_in_float64(case):
    """Two independent sets of hand-written gradients agree; finite differences below connect them with the
    values."""
    value, gradient = getattr(PlainCandidate("fp64"), case.operation)(case)
    expected = reference(replace(case, contract=FP64))
    exact, decided = expected.gradient.exact, ~expected.gradient.undecided
    # Both have rounding errors.
    assert abs(value - expected.value) <= expected.value_high - expected.value_low
    assert (abs(gradient - exact) <= 2 * expected.gradient.tolerance + FP64.unit * abs(exact))[decided].all()


@pytest.mark.parametrize(
    "name",
    [
        "policy/grpo-near/token-mean",
        "policy/grpo-off/seq-mean-token-mean",
        "kl/k3/middle",
        "kl/k2/small",
        "entropy/flat",
        "logprob/peaked",
        "aggregation/mixed/seq-mean-token-mean",
    ],
)
def test_gradients_are_derivatives_of_values(name):
    case = next(entry for entry in battery(seed=4) if entry.name == name)
    gradient = reference(case).gradient
    rng = np.random.default_rng(0)
    candidates = np.flatnonzero((~gradient.undecided & ~gradient.zero).reshape(-1))
    for place in rng.choice(candidates, size=4, replace=False):
        (coarse, _), (fine, rounding) = (slope(case, place, step) for step in (2e-5, 1e-5))
        # The error of a central difference is proportional to the square of its step, so that of the finer
        # one is a third of the difference between both.
        assert abs(fine - gradient.exact.reshape(-1)[place]) <= abs(coarse - fine) + rounding


def slope(case, place, step):
    """Central difference of the value, and how far rounding may move it."""
    values, doubt = [], 0.0
    for sign in (1, -1):
        moved = np.array(case.inputs[case.gradient_of], dtype=np.float64)
        moved.reshape(-1)[place] += sign * step
        changed = replace(case, contract=FP64, inputs={**case.inputs, case.gradient_of: moved})
        expected = reference(changed)
        values.append(float(expected.value))
        doubt += float(expected.value_high - expected.value_low)
    return (values[0] - values[1]) / (2 * step), doubt / step


def test_equal_rewards_prefer_nothing_and_a_lone_answer_keeps_its_reward():
    def case(rewards, index, **settings):
        size = len(rewards)
        return LossCase(
            name="hand",
            operation="advantage",
            contract=FP32,
            inputs={
                "rewards": np.asarray(rewards, dtype=np.float32),
                "index": np.asarray(index),
                "response_mask": np.ones((size, 1), dtype=np.float32),
            },
            settings=settings,
        )

    equal = reference(case([0.7] * 8, [0] * 8))
    assert not equal.value.any()
    assert equal.value_high.max() == pytest.approx(FP32.unit)
    assert reference(case([0.5], [0])).value[0, 0] == pytest.approx(0.5 / (1 + EPSILON))
    pair = reference(case([0.0, 1.0], [0, 0])).value[:, 0]
    assert pair == pytest.approx(np.array([-0.5, 0.5]) / (np.sqrt(0.5) + EPSILON))
    plain = reference(case([0.0, 1.0], [0, 0], norm_adv_by_std_in_grpo=False)).value[:, 0]
    assert plain == pytest.approx([-0.5, 0.5])
