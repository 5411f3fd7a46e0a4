"""The checks of the convergence tier.

Every plan imports this module. `smoke_check`, which imports the decision rule with numpy, is imported on use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.convergence.inference.inference_check import CHECK as GPT_OSS
from harness.convergence.inference.inference_check import FACETS
from harness.convergence.smoke.smoke_measurements import SMOKE_FORMAT, SmokeMeasurements
from harness.convergence.smoke.smoke_recipe import CANDIDATE_SEEDS, RUN_TIMEOUT_S
from harness.convergence.trainer.one_step_check import CHECK as ONE_STEP_OFF
from harness.convergence.trainer.recipe_twin_check import CHECK as RECIPE_TWIN
from harness.convergence.trainer.trainer_check import CHECKS as TRAINER_CHECKS
from harness.convergence.trainer.vllm_check import CHECKS as VLLM_CHECKS
from harness.convergence.trainer.vllm_one_step_check import CHECK as VLLM_ONE_STEP_OFF
from harness.outcome import Judgement, Measured, Tier


def _run_smoke(context: TaskContext) -> Measured[SmokeMeasurements]:
    from harness.convergence.smoke.smoke_check import run

    return run(context)


def _judge_smoke(measured: SmokeMeasurements, params: Mapping[str, Any]) -> Judgement:
    from harness.convergence.smoke.smoke_check import judge

    return judge(measured, params)


def _check(algorithm: str) -> Check:
    return Check(
        name=algorithm,
        tier=Tier.CONVERGENCE,
        question=f"Does a short {algorithm.upper()} training with verl's losses learn like the reference?",
        facets=FACETS,
        measurements=SMOKE_FORMAT,
        run=_run_smoke,
        judge=_judge_smoke,
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
