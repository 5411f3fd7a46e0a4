"""Clip decisions of verl's loss: which ones count, how far rounding moves them, and when rounding may decide."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.numerics.actor.actor_case import ActorCase
from harness.numerics.actor.clip_decisions import ClipDecisions, clip_margin, watch_clip_decisions

MODULE = "verl.trainer.ppo.core_algos"
CASE = ActorCase()
LOW, HIGH = np.log(1 - CASE.update.clip_ratio_low), np.log(1 + CASE.update.clip_ratio_high)


class Tensor:
    """The methods of a tensor that the wrapper of the loss calls."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values, dtype=np.float64)

    def detach(self) -> Tensor:
        return self

    cpu = double = detach

    def numpy(self) -> np.ndarray:
        return self.values


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A verl release whose losses are registered by name."""
    losses = {"vanilla": lambda **given: given["log_prob"], "gspo": lambda **given: given["log_prob"]}
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(POLICY_LOSS_REGISTRY=losses))
    return losses


def call(registry: dict[str, Any], ratios: Any, *, loss: str = "vanilla", advantages: Any = 1.0) -> Any:
    ratios = np.atleast_2d(ratios)
    given = {
        "old_log_prob": Tensor(np.zeros_like(ratios)),
        "log_prob": Tensor(ratios),
        "advantages": Tensor(np.zeros_like(ratios) + advantages),
        "response_mask": Tensor(np.arange(ratios.shape[1])[None] < 2),
    }
    return registry[loss](**given)


def watched(registry: dict[str, Any], ratios: Any, **given: Any) -> tuple[np.ndarray, np.ndarray]:
    calls: list[Any] = []
    loss_mode = given.get("loss", "vanilla")
    original = registry[loss_mode]
    with watch_clip_decisions(
        loss_mode, lambda ratio: clip_margin(CASE, ratio), lambda *one: calls.append(one)
    ):
        call(registry, ratios, **given)
    assert registry[loss_mode] is original
    (found,) = calls
    return found


def test_tokens_that_count_have_their_distance_from_the_nearest_bound(registry: dict[str, Any]) -> None:
    ratio, margin = watched(registry, [HIGH + 0.1, LOW + 0.2, LOW])
    assert margin[0, :2] == pytest.approx([np.log(3) - HIGH - 0.1, 0.2])
    # Padding never decides.
    assert ratio[0, 2] == 0
    assert np.isinf(margin[0, 2])


def test_without_advantage_nothing_is_decided(registry: dict[str, Any]) -> None:
    assert np.isinf(watched(registry, [HIGH, LOW], advantages=0.0)[1]).all()


def test_gspo_decides_by_the_mean_over_the_response(registry: dict[str, Any]) -> None:
    ratio, margin = watched(registry, [HIGH, HIGH + 0.2, 9.0], loss="gspo")
    assert ratio.tolist() == [[pytest.approx(HIGH + 0.1)]]
    assert margin.shape == (1, 1)


@pytest.mark.parametrize(("drift", "slack"), [(0.01, 5.0), (0.1, 0.5)])
def test_slack_is_the_distance_in_units_of_what_roundings_do(
    registry: dict[str, Any], drift: float, slack: float
) -> None:
    clips = ClipDecisions(case=CASE)
    for ratio in (LOW + 0.1, LOW + 0.1 + drift / 2, LOW + 0.1 - drift):
        with clips.watched():
            call(registry, [ratio, 0.0, 0.0])
    assert clips.slack(2.0) == pytest.approx(slack)


def test_a_release_that_names_no_losses_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("verl", "verl.trainer", "verl.trainer.ppo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace())
    clips = ClipDecisions(case=CASE)
    with clips.watched():
        pass
    assert clips.slack(2.0) is None
