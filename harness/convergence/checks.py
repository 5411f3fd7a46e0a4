"""The checks of the convergence tier."""

from __future__ import annotations

from harness.check import Check
from harness.convergence.inference.inference_check import CHECK as GPT_OSS
from harness.convergence.smoke import smoke_check
from harness.convergence.smoke.smoke_check import CANDIDATE_SEEDS, RUN_TIMEOUT_S
from harness.convergence.smoke.smoke_measurements import SMOKE_FORMAT
from harness.convergence.trainer.one_step_check import CHECK as ONE_STEP_OFF
from harness.convergence.trainer.recipe_twin_check import CHECK as RECIPE_TWIN
from harness.convergence.trainer.trainer_check import CHECKS as TRAINER_CHECKS
from harness.convergence.trainer.vllm_check import CHECKS as VLLM_CHECKS
from harness.convergence.trainer.vllm_one_step_check import CHECK as VLLM_ONE_STEP_OFF
from harness.outcome import Tier

FACETS = (
    "pins",
    "platform",
    "verl_tree",
    "patches[verl]",
    "patches[vllm_ascend]",
    "device",
    "versions",
)


def _check(algorithm: str) -> Check:
    return Check(
        name=algorithm,
        tier=Tier.CONVERGENCE,
        question=f"Does a short {algorithm.upper()} training with verl's losses learn like the reference?",
        facets=FACETS,
        measurements=SMOKE_FORMAT,
        run=smoke_check.run,
        judge=smoke_check.judge,
        needs=("environment",),
        params={"algorithm": algorithm},
        device=True,
        timeout_s=len(CANDIDATE_SEEDS) * RUN_TIMEOUT_S + 60.0,
        expected_s=25.0,
    )


CHECKS = (
    _check("grpo"),
    _check("gspo"),
    *TRAINER_CHECKS,
    *VLLM_CHECKS,
    VLLM_ONE_STEP_OFF,
    ONE_STEP_OFF,
    RECIPE_TWIN,
    GPT_OSS,
)
