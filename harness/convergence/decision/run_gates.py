"""Gates: what is wrong with a run no matter how the reference curves scatter. One is enough to fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.convergence.decision.decision_rule import Rule
from harness.convergence.decision.run_summaries import LARGEST

Floats = NDArray[np.float64]

# A gradient this small leaves Adam's update to its epsilon of 1e-8.
DEAD_GRADIENT = 1e-8
# Steps a gate looks at, where one step may be chance.
EARLY = 5
HINTS = {
    "non-finite": "Find the first operation that makes it: run the loss check, then use anomaly detection.",
    "constant reward": "Look at what the rollout returns and at the reward function.",
    "dead gradient": "Look at the response mask, the advantages, and what the loss depends on.",
    "no signal in any group": "Look at the sampler (is it greedy?) and at the reward function.",
    "mismatch": "Look at the weights and the temperature the rollout samples with.",
}


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A gate that was crossed: its name, the step (from 0) that shows it, and a sentence."""

    name: str
    step: int
    reason: str

    @property
    def hint(self) -> str:
        """What to look at."""
        return HINTS[self.name]


def first_failed_gate(run: Mapping[str, Floats], rule: Rule) -> Gate | None:
    """The first gate the run crosses, or None."""
    found = [*_non_finite(run, rule), *_no_signal(run, rule), *_mismatch(run, rule)]
    return min(found, key=lambda gate: gate.step, default=None)


def _non_finite(run: Mapping[str, Floats], rule: Rule) -> list[Gate]:
    names = [rule.reward, *(feature.name for feature in rule.features if feature.finite)]
    found = []
    for name in names:
        values = run.get(name)
        if values is None:
            continue
        with np.errstate(invalid="ignore"):
            bad = np.flatnonzero(~(np.abs(values) < LARGEST))
        if len(bad):
            step = int(bad[0])
            found.append(
                Gate(name="non-finite", step=step, reason=f"{name} is {values[step]} at step {step + 1}")
            )
    return found


def _no_signal(run: Mapping[str, Floats], rule: Rule) -> list[Gate]:
    found = []
    reward, count = run[rule.reward], rule.constant_steps
    # Only from the start: a solved task may stay constant at its best value.
    if len(reward) >= count and np.all(reward[:count] == reward[0]):
        found.append(
            Gate(
                name="constant reward",
                step=count - 1,
                reason=f"{rule.reward} is {reward[0]:g} at each of the first {count} steps",
            )
        )
    gradient = run.get("grad_norm")
    if gradient is not None and len(gradient) >= EARLY and np.all(gradient[:EARLY] < DEAD_GRADIENT):
        found.append(
            Gate(
                name="dead gradient",
                step=EARLY - 1,
                reason=f"grad_norm is below {DEAD_GRADIENT:g} at each of the first {EARLY} steps",
            )
        )
    groups = run.get("zero_variance_groups")
    if groups is not None and len(groups) >= EARLY and np.all(groups[:EARLY] > 0.999):
        found.append(
            Gate(
                name="no signal in any group",
                step=EARLY - 1,
                reason=f"all responses of every prompt have equal rewards in the first {EARLY} steps",
            )
        )
    return found


def _mismatch(run: Mapping[str, Floats], rule: Rule) -> list[Gate]:
    mismatch = run.get("mismatch")
    if mismatch is None or len(mismatch) < EARLY:
        return []
    mean = float(np.mean(np.minimum(mismatch[:EARLY], LARGEST)))
    if not mean > rule.largest_mismatch:
        return []
    reason = (
        f"rollout and trainer disagree: mean |exp(rollout - trainer log-prob) - 1| is {mean:.3g} in the "
        f"first {EARLY} steps, at most {rule.largest_mismatch:g} can be arithmetic"
    )
    return [Gate(name="mismatch", step=EARLY - 1, reason=reason)]
