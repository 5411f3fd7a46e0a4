"""The checks of the convergence tier."""

from __future__ import annotations

from harness.convergence.inference.inference_check import CHECK as GPT_OSS
from harness.convergence.smoke.smoke_check import CHECKS as SMOKE_CHECKS
from harness.convergence.trainer.one_step_check import CHECK as ONE_STEP_OFF
from harness.convergence.trainer.recipe_twin_check import CHECK as RECIPE_TWIN
from harness.convergence.trainer.trainer_check import CHECKS as TRAINER_CHECKS
from harness.convergence.trainer.vllm_check import CHECKS as VLLM_CHECKS
from harness.convergence.trainer.vllm_one_step_check import CHECK as VLLM_ONE_STEP_OFF

CHECKS = (
    *SMOKE_CHECKS,
    *TRAINER_CHECKS,
    *VLLM_CHECKS,
    VLLM_ONE_STEP_OFF,
    ONE_STEP_OFF,
    RECIPE_TWIN,
    GPT_OSS,
)
