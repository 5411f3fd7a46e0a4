"""The reference against hand-worked numbers, finite differences, and its own edge semantics."""

from __future__ import annotations

import numpy as np
import pytest

from harness.numerics.battery import battery
from harness.numerics.case import Case
from harness.numerics.contract import FP32
from harness.numerics.plain import PlainCandidate
from harness.numerics.reference import reference

BASE = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean"}


def policy(log_ratio, advantages, mask=None, **settings) -> Case:
    ratio = np.atleast_2d(np.asarray(log_ratio, dtype=np.float32))
    valid = np.ones_like(ratio) if mask is None else np.atleast_2d(np.asarray(mask, dtype=np.float32))
    return Case(
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
    assert expected.value == pytest.approx(loss, rel=1e-6)
    assert expected.gradient.exact[0, 0] == pytest.approx(gradient, rel=1e-6)


def test_gspo_uses_the_mean_log_ratio_of_the_sequence_and_has_no_dual_clip():
    expected = reference(policy([0.3, 0.1, 9.0], [-1.0, -1.0, -1.0], [1, 1, 0], loss_mode="gspo"))
    ratio = np.exp(0.2)
    assert expected.value == pytest.approx(ratio, rel=1e-6)
    assert expected.gradient.exact[0] == pytest.approx([ratio / 2, ratio / 2, 0.0], rel=1e-6)
    far = reference(policy([3.0], [-1.0], loss_mode="gspo"))
    assert far.value == pytest.approx(np.exp(3.0), rel=1e-6)


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
    """Two independent sets of hand-written gradients; finite differences below tie them to the values."""
    value, gradient = getattr(PlainCandidate("fp64"), case.operation)(case)
    expected = reference(case)
    decided = ~expected.gradient.undecided
    assert value == pytest.approx(expected.value, rel=1e-9, abs=1e-12)
    assert np.allclose(np.asarray(gradient)[decided], expected.gradient.exact[decided], rtol=1e-9, atol=1e-15)


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
    step = 1e-5
    for place in rng.choice(candidates, size=4, replace=False):
        values = []
        for sign in (1, -1):
            moved = np.array(case.inputs[case.gradient_of], dtype=np.float64)
            moved.reshape(-1)[place] += sign * step
            inputs = {**case.inputs, case.gradient_of: moved}
            changed = Case(
                name=name,
                operation=case.operation,
                contract=FP32,
                inputs=inputs,
                gradient_of=case.gradient_of,
                settings=case.settings,
            )
            values.append(float(reference(changed).value))
        slope = (values[0] - values[1]) / (2 * step)
        assert slope == pytest.approx(gradient.exact.reshape(-1)[place], rel=1e-4, abs=1e-9)


def test_equal_rewards_prefer_nothing_and_a_lone_answer_keeps_its_reward():
    def case(rewards, index, **settings):
        size = len(rewards)
        return Case(
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
    assert equal.value_high.max() < 1e-7
    assert reference(case([0.5], [0])).value[0, 0] == pytest.approx(0.5, rel=1e-5)
    pair = reference(case([0.0, 1.0], [0, 0])).value[:, 0]
    assert pair == pytest.approx([-np.sqrt(0.5), np.sqrt(0.5)], rel=1e-5)
    plain = reference(case([0.0, 1.0], [0, 0], norm_adv_by_std_in_grpo=False)).value[:, 0]
    assert plain == pytest.approx([-0.5, 0.5])
