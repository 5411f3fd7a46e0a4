"""The check `trainer-vllm-one-step-off`: one-step-off-policy training with vLLM on a second card."""

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
"""The third step samples with the weights that the first one trained."""
COMPARED = 1
"""Only in the first step rollout and trainer have the same weights; later steps are off-policy."""
# Logical CPUs of Ray. The recipe's runner requests ten and each card's pool three, and vLLM's server one;
# with fewer, the server would wait forever.
PROCESSORS = 24
OPTIONS = (
    "--one-step-off",
    *("--set", f"ray_kwargs.ray_init.num_cpus={PROCESSORS}"),
    # Makes the trainer compute log-probabilities too; by default the recipe uses those of the rollout.
    *("--set", "algorithm.rollout_correction.bypass_mode=false"),
)
"""Options of the trainer's program."""
# The commit that the stack one-step-off-2card uses. The wheels of verl up to 0.7.1 do not include the recipe.
COMMITS = {"0.7.0.dev0@ccd7d934f91be98bb3732c78bd1870fa39c399ad"}


def run(context: TaskContext) -> Measured[trainer.Measurements]:
    """Train in the cell with the rollout on a second device.

    Weights are synced by HCCL, not through a socket, so no device number has to be reserved.
    """
    return vllm_check.measure(context, vllm_check.simulation_variables(context), *OPTIONS)


def applies(facets: Mapping[str, Any]) -> str:
    """Why this check cannot run in this cell, or ""."""
    versions = facets.get("versions", {})
    if not versions.get("vllm_ascend"):
        return "this cell has no vllm-ascend"
    if str(versions.get("verl", "")) not in COMMITS:
        return "this check runs only with verl ccd7d934, whose one-step-off recipe is patched for HCCL"
    if facets["device"]["kind"] != "sim":
        return "this check runs on two simulated devices only; on NPUs, use a recipe with two cards"
    return trainer.applies(facets)


CHECK = Check(
    name="trainer-vllm-one-step-off",
    tier=Tier.CONVERGENCE,
    question="Does one-step-off-policy training run, and do the weights reach vLLM on another card?",
    facets=trainer.FACETS,
    measurements=TRAINER_FORMAT,
    run=run,
    judge=vllm_check.judge,
    needs=("environment",),
    params={"algorithm": ALGORITHM, "steps": STEPS, "compared": COMPARED},
    device=True,
    timeout_s=vllm_check.CHECK_TIMEOUT_S,
    expected_s=150.0,
    applies=applies,
)
