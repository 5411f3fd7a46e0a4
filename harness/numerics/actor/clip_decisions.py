"""The log-ratios that verl's policy loss clips, and the distance of each from a clip bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.actor.actor_case import ActorCase

Values = NDArray[np.float64]

#: (log-ratios, their distances from the nearest bound) of one call of the loss
KeepClipDecisions = Callable[[Values, Values], None]
Margin = Callable[[Values], Values]


def clip_margin(case: ActorCase, log_ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance of each log-ratio from the nearest bound of the policy loss, in the same units."""
    bounds = [1 - case.update.clip_ratio_low, 1 + case.update.clip_ratio_high, DUAL_CLIP]
    return np.asarray(np.min([np.abs(log_ratio - math.log(bound)) for bound in bounds], axis=0))


DUAL_CLIP = 3.0
"""verl's default of `clip_ratio_c`."""


@contextmanager
def watch_clip_decisions(loss_mode: str, margin: Margin, keep: KeepClipDecisions) -> Iterator[None]:
    """Pass the log-ratios of verl's policy loss `loss_mode` to `keep`, with their distances from the nearest
    clip bound.

    The distance is infinite if padding or an advantage of zero makes the decision irrelevant. A release
    without a registry of losses reports nothing.
    """
    registry = getattr(import_module("verl.trainer.ppo.core_algos"), "POLICY_LOSS_REGISTRY", {})
    if loss_mode not in registry:
        yield
        return
    original: Callable[..., Any] = registry[loss_mode]

    def watched(*args: Any, **kwargs: Any) -> Any:
        old, new, advantages, mask = (
            kwargs[key].detach().cpu().double().numpy()
            for key in ("old_log_prob", "log_prob", "advantages", "response_mask")
        )
        ratio = (new - old) * mask
        if loss_mode == "gspo":
            ratio = ratio.sum(axis=1, keepdims=True) / np.maximum(mask.sum(axis=1, keepdims=True), 1)
        is_relevant = (
            ((mask != 0) & (advantages != 0))
            if ratio.shape == mask.shape
            else (advantages != 0).any(1)[:, None]
        )
        keep(ratio, np.where(is_relevant, margin(ratio), np.inf))
        return original(*args, **kwargs)

    registry[loss_mode] = watched
    try:
        yield
    finally:
        registry[loss_mode] = original


@dataclass(kw_only=True)
class ClipDecisions:
    """Clip decisions of an exact update, and how far other runs deviate from them."""

    case: ActorCase
    exact: list[tuple[Values, Values]] = field(default_factory=list)
    drift: list[float] = field(default_factory=list)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Add one run; the first is the exact one."""
        calls: list[tuple[Values, Values]] = []
        with watch_clip_decisions(
            self.case.update.loss_mode, partial(clip_margin, self.case), lambda *call: calls.append(call)
        ):
            yield
        if not self.exact:
            self.exact, self.drift = calls, [0.0] * len(calls)
            return
        for number, ((found, _), (expected, _)) in enumerate(zip(calls, self.exact, strict=True)):
            self.drift[number] = max(self.drift[number], float(np.abs(found - expected).max(initial=0.0)))

    def slack(self, safety: float) -> float | None:
        """The smallest distance from a bound, in units of `safety` times the largest deviation in that call.
        If it is not above 1, rounding may decide. None if there was no decision."""
        ratios = [
            float(np.min(margin, initial=np.inf)) / max(safety * drift, 1e-300)
            for (_, margin), drift in zip(self.exact, self.drift, strict=True)
        ]
        return float(f"{min(*ratios, 1e300):.4g}") if ratios else None
