"""Gates: conditions that make a run fail by themselves, without a comparison with reference runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.convergence.decision.decision_rule import Rule
from harness.convergence.decision.run_summaries import LARGEST

Floats = NDArray[np.float64]

# With a gradient below Adam's epsilon of 1e-8, its update no longer depends on the gradient's direction.
DEAD_GRADIENT = 1e-8
# Number of first steps that a gate tests together, because a single step can be chance.
EARLY = 5
HINTS = {
    "non-finite": "Run the check `loss`, then use torch's anomaly detection to find the first bad operation.",
    "constant reward": "Look at the responses that the rollout returns and at the reward function.",
    "dead gradient": "Look at the response mask, the advantages, and the inputs of the loss.",
    "no signal in any group": "Look at the sampler (is it greedy?) and at the reward function.",
    "mismatch": "Look at the weights and the temperature that the rollout samples with.",
}


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A gate that a run failed: its name, the step (from 0) that shows it, and the reason."""

    name: str
    step: int
    reason: str

    @property
    def hint(self) -> str:
        """What to look at first."""
        return HINTS[self.name]


def first_failed_gate(run: Mapping[str, Floats], rule: Rule) -> Gate | None:
    """The first gate that the run fails, or None."""
    found = [*_non_finite(run, rule), *_no_signal(run, rule), *_mismatch(run, rule)]
    return min(found, key=lambda gate: gate.step, default=None)


def _non_finite(run: Mapping[str, Floats], rule: Rule) -> list[Gate]:
    names = [rule.reward, *(feature.name for feature in rule.features)]
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
    if mean <= rule.largest_mismatch:
        return []
    reason = (
        f"rollout and trainer disagree: mean |exp(rollout - trainer log-probability) - 1| is {mean:.3g} in "
        f"the first {EARLY} steps, rounding explains at most {rule.largest_mismatch:g}"
    )
    return [Gate(name="mismatch", step=EARLY - 1, reason=reason)]
