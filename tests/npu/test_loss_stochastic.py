"""Stochastic arithmetic: float64 runs of fp32 code that are exact, or perturbed within the contract. On the CPU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from harness.numerics.actor.actor_update import tracing  # noqa: E402
from harness.numerics.arithmetic import stochastic_arithmetic  # noqa: E402 - it needs torch
from harness.numerics.arithmetic.precision_contract import FP32  # noqa: E402

SEEDS = range(20)


@pytest.fixture
def values():
    return torch.randn(16, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_casts_to_fp32_keep_float64(values) -> None:
    with stochastic_arithmetic.exact(FP32):
        widened = values.to(torch.float32)
        softmax = torch.softmax(values, -1, dtype=torch.float32)
    assert (widened == values).all()
    assert (softmax == torch.softmax(values, -1)).all()


@pytest.mark.parametrize(
    ("operation", "permitted"),
    [
        (lambda x: x * 1.5, lambda x: FP32.unit * (x * 1.5).abs()),
        (lambda x: x @ x.T, lambda x: 25 * FP32.unit * (x.abs() @ x.abs().T) + FP32.unit),
        (lambda x: torch.exp(x), lambda x: (3 + x.abs()) * FP32.ulp * x.exp()),
        (lambda x: torch.softmax(x, -1), lambda x: 60 * FP32.ulp * torch.softmax(x, -1)),
        (lambda x: x.sum(-1), lambda x: 25 * FP32.unit * x.abs().sum(-1)),
    ],
    ids=["mul", "mm", "exp", "softmax", "sum"],
)
def test_results_move_and_stay_within_what_the_contract_permits(values, operation, permitted) -> None:
    exact, most = operation(values), permitted(values)
    for seed in SEEDS:
        with stochastic_arithmetic.perturbed(FP32, seed):
            moved = operation(values)
        distance = (moved - exact).abs()
        assert (distance > 0).any()
        assert (distance <= most).all()


def test_zeros_choices_and_masks_are_not_moved(values) -> None:
    lowest = torch.full_like(values, torch.finfo(torch.float64).min)
    with stochastic_arithmetic.perturbed(FP32, 1):
        assert (torch.zeros_like(values) * values == 0).all()
        assert (values.clamp(-1, 1).abs() <= 1).all()
        assert (lowest + values == lowest).all()
        assert (values.transpose(0, 1).contiguous() == values.T).all()


def test_gradients_are_perturbed_too(values) -> None:
    def gradient():
        leaf = values.clone().requires_grad_()
        torch.log_softmax(leaf, -1)[:, 0].sum().backward()
        return leaf.grad

    exact, logs = gradient(), torch.log_softmax(values, -1)
    with stochastic_arithmetic.perturbed(FP32, 1):
        moved = gradient()
    # The error of log_softmax is propagated through exp. Then follow exp, the sum of 64 gradients and one rounding.
    size = values.abs().amax(-1, keepdim=True)
    before = (3 + 3 * (1 + math.log(64))) * FP32.ulp + (FP32.growth(64) + 2 * size + logs.abs()) * FP32.unit
    permitted = (
        logs.exp() * (before + (3 + logs.abs()) * FP32.ulp + FP32.growth(64) * FP32.unit)
        + FP32.unit * exact.abs()
    )
    distance = (moved - exact).abs()
    assert (distance > 0).any()
    # The factor is for errors of second order.
    assert (distance <= permitted * (1 + 1e-4)).all()


def test_what_is_too_small_for_the_format_may_be_lost_and_zero_stays(values) -> None:
    tiny, half = values * 2.0**-24, replace(FP32, compute="fp16")
    with stochastic_arithmetic.perturbed(half, 1):
        moved, nothing = tiny * 1.0, torch.zeros_like(values) * 2.0
    distance = (moved - tiny).abs()
    assert (distance > half.unit * tiny.abs()).any()
    assert (distance <= half.unit * tiny.abs() + half.underflow).all()
    assert (nothing == 0).all()


def test_an_operation_without_a_bound_is_listed(values) -> None:
    mode = stochastic_arithmetic.perturbed(FP32, 1)
    with mode:
        torch.erf(values)
    assert mode.unbounded == {"erf": 1}


def test_a_trace_names_what_computes_and_leaves_out_what_moves(values) -> None:
    names: list[str] = []
    with tracing(torch, names), torch.profiler.record_function("a part of the model"):
        torch.exp(values.transpose(0, 1).contiguous() + 1)[0].clone()
    assert names == ["add", "exp"]
