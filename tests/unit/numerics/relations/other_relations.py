"""Relations of advantages, entropy and log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.numerics.arithmetic.precision_contract import FP32, Array
from harness.numerics.loss.cases import case_inputs
from harness.numerics.loss.cases.loss_case import LossCase
from relations.relation_probe import (
    Probe,
    Violation,
    changed,
    finite,
    relative_difference,
)

LOGIT_OPERATIONS = ("entropy", "logprob")


def _advantage_case(rewards: Array, index: NDArray[Any]) -> LossCase:
    mask = np.tile([1.0, 1.0, 0.0], (rewards.size, 1))
    arrays = {"rewards": rewards, "index": index, "response_mask": mask}
    return LossCase(
        name="metamorphic",
        operation="advantage",
        contract=FP32,
        inputs=case_inputs.for_device(FP32, arrays),
        settings={"norm_adv_by_std_in_grpo": True},
    )


def advantage_relations(probe: Probe) -> Iterator[Violation]:
    """Rewards may be shifted, scaled and reordered. Equal rewards have advantage zero."""
    rewards, index = probe.rng.integers(-8, 9, 24) / 8.0, np.repeat(np.arange(4), 6)
    rewards[::6] += 2.0
    here = probe.value(_advantage_case(rewards, index))
    shifted = probe.value(_advantage_case(rewards + 4.0, index))
    stretched = probe.value(_advantage_case(rewards * 4.0, index))
    order = probe.rng.permutation(24)
    moved = probe.value(_advantage_case(rewards[order], index[order]))
    yield Violation(relation="advantage-shift", amount=finite(float(np.abs(here - shifted).max())))
    # Scaling changes only the effect of epsilon = 1e-6 next to a deviation of order one.
    yield Violation(relation="advantage-stretch", amount=finite(float(np.abs(here - stretched).max())))
    yield Violation(relation="advantage-order", amount=finite(float(np.abs(here[order] - moved).max())))
    groups = here[:, 0].reshape(4, 6)
    yield Violation(relation="advantage-sum-zero", amount=finite(float(np.abs(groups.sum(axis=1)).max())))
    spread = np.abs(groups.std(axis=1, ddof=1) - 1).max()
    yield Violation(relation="advantage-unit-spread", amount=finite(float(spread)))
    rises = np.sign(groups[:, 0] - groups[:, 1]) == np.sign(rewards[::6] - rewards[1::6])
    yield Violation(relation="advantage-rises-with-reward", amount=0.0 if rises.all() else np.inf)
    yield Violation(relation="advantage-padding-zero", amount=finite(float(np.abs(here[:, 2]).max())))
    alone = probe.value(_advantage_case(np.array([0.5]), np.zeros(1, dtype=np.int64)))
    yield Violation(relation="advantage-alone", amount=finite(abs(float(alone[0, 0]) - 0.5)))
    equal = probe.value(_advantage_case(np.full(8, 0.7), np.zeros(8, dtype=np.int64)))
    yield Violation(relation="advantage-equal-rewards", amount=finite(float(np.abs(equal).max())))


def logit_relations(probe: Probe, operation: str) -> Iterator[Violation]:
    """For one of `LOGIT_OPERATIONS`: a constant added to all logits changes nothing, and gradients over the
    vocabulary sum to zero."""
    mask = np.ones((3, 4))
    logits = np.round(probe.rng.normal(size=(3, 4, 32)) * 16) / 16
    arrays = {
        "logits": logits,
        "labels": probe.rng.integers(0, 32, (3, 4)),
        "weights": np.full((3, 4), 0.25),
        "response_mask": mask,
    }
    case = LossCase(
        name="metamorphic",
        operation=operation,
        contract=FP32,
        inputs=case_inputs.for_device(FP32, arrays),
        gradient_of="logits",
        settings={"loss_agg_mode": "token-mean"},
    )
    here, there = probe.run(case), probe.run(changed(case, logits=logits + 8.0))
    # Adding 8 costs four bits of precision in the sums of logits.
    yield Violation(relation=f"{operation}-shift", amount=relative_difference(here, there) / 16)
    total = float(np.abs(here.gradient.sum(axis=-1)).max() / np.abs(here.gradient).max())
    yield Violation(relation=f"{operation}-gradient-sum", amount=finite(total))
