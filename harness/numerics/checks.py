"""Declares the checks of the numerics package."""

from __future__ import annotations

from harness.check import Check
from harness.numerics.actor import actor_check
from harness.numerics.actor.actor_measurements import ACTOR_FORMAT
from harness.numerics.loss import loss_check
from harness.numerics.loss.loss_measurements import LOSS_FORMAT
from harness.numerics.twin import twin_check
from harness.numerics.twin.twin_measurements import TWIN_FORMAT
from harness.numerics.update import update_check
from harness.numerics.update.update_measurements import UPDATE_FORMAT
from harness.outcome import Tier

FACETS = (
    "pins",
    "platform",
    "verl_tree",
    "patches[verl]",
    "patches[vllm_ascend]",
    "patches[others]",
    "device",
    "versions",
)

CHECKS = (
    Check(
        name="loss",
        tier=Tier.NUMERICS,
        question="Are verl's losses, advantages and log-probabilities correct on this device?",
        facets=FACETS,
        run=loss_check.run,
        judge=loss_check.judge,
        measurements=LOSS_FORMAT,
        needs=("environment",),
        device=True,
        timeout_s=loss_check.PROGRAM_TIMEOUT_S + loss_check.REFERENCE_TIMEOUT_S + 60.0,
        expected_s=15.0,
    ),
    Check(
        name="update",
        tier=Tier.NUMERICS,
        question="Is a whole update of verl correct by its definition, from rewards to parameters?",
        facets=FACETS,
        run=update_check.run,
        judge=update_check.judge,
        measurements=UPDATE_FORMAT,
        needs=("environment",),
        device=True,
        timeout_s=2 * update_check.TIMEOUT_S + 60.0,
        expected_s=15.0,
    ),
    Check(
        name="actor",
        tier=Tier.NUMERICS,
        question="Does verl's own actor make the same update on this device as on a CPU?",
        facets=FACETS,
        run=actor_check.run,
        judge=actor_check.judge,
        measurements=ACTOR_FORMAT,
        needs=("environment",),
        device=True,
        timeout_s=actor_check.REFERENCE_TIMEOUT_S + actor_check.DEVICE_TIMEOUT_S + 60.0,
        expected_s=30.0,
    ),
    Check(
        name="actor-bf16",
        tier=Tier.NUMERICS,
        question="Does verl's own actor compute in bf16 what bf16 operands with fp32 accumulation give?",
        facets=FACETS,
        run=actor_check.run,
        judge=actor_check.judge,
        measurements=ACTOR_FORMAT,
        needs=("environment",),
        params={"compute": "bfloat16"},
        device=True,
        timeout_s=actor_check.REFERENCE_TIMEOUT_S + actor_check.DEVICE_TIMEOUT_S + 60.0,
        expected_s=30.0,
    ),
    Check(
        name="twin",
        tier=Tier.NUMERICS,
        question="Do ten steps of sampling and training match a float64 copy on the CPU?",
        facets=FACETS,
        run=twin_check.run,
        judge=twin_check.judge,
        measurements=TWIN_FORMAT,
        needs=("environment",),
        device=True,
        timeout_s=twin_check.REFERENCE_TIMEOUT_S + twin_check.DEVICE_TIMEOUT_S + 60.0,
        expected_s=50.0,
    ),
)
