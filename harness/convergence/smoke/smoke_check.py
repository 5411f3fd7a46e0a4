"""The checks `grpo` and `gspo`: does a short training with verl's loss functions learn like the reference?

Every plan imports this module, so `smoke_runs`, which needs the decision rule with numpy, is imported on use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.convergence.smoke.smoke_measurements import SMOKE_FORMAT, SmokeMeasurements
from harness.convergence.smoke.smoke_recipe import ALGORITHMS, CANDIDATE_SEEDS, RUN_TIMEOUT_S
from harness.outcome import Judgement, Measured, Tier

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


def run(context: TaskContext) -> Measured[SmokeMeasurements]:
    """Train in the cell; see `smoke_runs.run`."""
    from harness.convergence.smoke.smoke_runs import run as run_trainings

    return run_trainings(context)


def judge(measured: SmokeMeasurements, params: Mapping[str, Any]) -> Judgement:
    """Apply the decision rule to the recorded series; see `smoke_runs.judge`."""
    from harness.convergence.smoke.smoke_runs import judge as judge_trainings

    return judge_trainings(measured, params)


def _check(algorithm: str) -> Check:
    return Check(
        name=algorithm,
        tier=Tier.CONVERGENCE,
        question=f"Does a short {algorithm.upper()} training with verl's losses learn like the reference?",
        facets=FACETS,
        measurements=SMOKE_FORMAT,
        run=run,
        judge=judge,
        needs=("environment",),
        params={"algorithm": algorithm},
        device=True,
        timeout_s=len(CANDIDATE_SEEDS) * RUN_TIMEOUT_S + 60.0,
        expected_s=25.0,
    )


CHECKS = tuple(_check(algorithm) for algorithm in ALGORITHMS)
