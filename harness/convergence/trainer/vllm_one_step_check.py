"""The check that trains one step off its policy with vLLM on a card of its own: does it get the weights?

Imports are light.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.convergence.trainer import trainer_check as trainer
from harness.convergence.trainer import vllm_check
from harness.convergence.trainer.trainer_measurements import TRAINER_FORMAT
from harness.outcome import Measured, Tier

ALGORITHM = "grpo"
STEPS = 3
"""The third one samples with the weights that the first one made."""
COMPARED = 1
"""Later steps train on what an older policy sampled; the first has the weights of the first hand-over."""
# Logical: the recipe's runner asks Ray for ten, each card's pool for three, and vLLM's server would wait for
# its one for ever.
PROCESSORS = 24
OPTIONS = (
    "--one-step-off",
    *("--set", f"ray_kwargs.ray_init.num_cpus={PROCESSORS}"),
    # The trainer too says what it holds a token's probability for, which the recipe leaves to the rollout.
    *("--set", "algorithm.rollout_correction.bypass_mode=false"),
)
"""Of the trainer's program."""
# The commit of the row one-step-off-2card, where it is a recipe. Its wheels, up to 0.7.1, have none.
COMMITS = {"0.7.0.dev0@ccd7d934f91be98bb3732c78bd1870fa39c399ad"}


def run(context: TaskContext) -> Measured[trainer.Measurements]:
    """Train in the cell, the rollout on a second device; nobody else's socket is met: weights go by HCCL."""
    return vllm_check.measure(context, vllm_check.simulation(context), *OPTIONS)


def applies(facets: Mapping[str, Any]) -> str:
    """Why this cell cannot be driven so, or ""."""
    versions = facets.get("versions", {})
    if not versions.get("vllm_ascend"):
        return "this cell has no vllm-ascend"
    if str(versions.get("verl", "")) not in COMMITS:
        return "one step off with vLLM is tried with the recipe of ccd7d934, which has our patch"
    if facets["device"]["kind"] != "sim":
        return "it takes two devices, which are simulated; on cards a recipe asks for them"
    return trainer.applies(facets)


CHECK = Check(
    name="trainer-vllm-one-step-off",
    tier=Tier.CONVERGENCE,
    question="Does verl train one step off its policy, and does vLLM on another card get the weights?",
    facets=trainer.FACETS,
    measurements=TRAINER_FORMAT,
    run=run,
    judge=vllm_check.judge,
    needs=("environment",),
    params={"algorithm": ALGORITHM, "steps": STEPS, "compared": COMPARED},
    device=True,
    timeout_s=trainer.TIMEOUT_S + vllm_check.LIMITS_TIMEOUT_S + 60.0,
    expected_s=150.0,
    applies=applies,
)
