"""The checks that run verl's own trainer on a tiny task: does it train on this cell's device?

Every plan imports this module, so `trainer_runs`, which needs the decision rule with numpy, is imported on
use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.convergence.trainer.judging.failed_runs import TIMEOUT_S
from harness.convergence.trainer.trainer_measurements import (
    TRAINER_FORMAT,
    TrainerMeasurements,
    TrainerProgramFailure,
)
from harness.outcome import Judgement, Measured, Tier

Measurements = TrainerMeasurements | TrainerProgramFailure
OLDEST = (0, 6)
FACETS = ("pins", "platform", "verl_tree", "patches[verl]", "patches[vllm_ascend]", "device", "versions")


def run(context: TaskContext) -> Measured[Measurements]:
    """Run the trainer in the cell. A trainer that hangs or crashes is a measurement, not an error."""
    from harness.convergence.trainer.trainer_runs import measure

    return measure(context, ["--algorithm", str(context.params["algorithm"])])


def judge(measured: Measurements, params: Mapping[str, Any]) -> Judgement:
    """Judge the recorded series; see `trainer_runs.judge`."""
    from harness.convergence.trainer.trainer_runs import judge as judge_runs

    return judge_runs(measured, params)


def applies(facets: Mapping[str, Any]) -> str:
    """Why this check cannot run the trainer of this cell's verl, or ""."""
    version = str(facets.get("versions", {}).get("verl", "")).partition("@")[0]
    if not version:
        return "this cell has no verl"
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        return f"verl {version} has no rollout registry; this check needs verl 0.6 or later"
    return ""


def _check(algorithm: str) -> Check:
    return Check(
        name=f"trainer-{algorithm}",
        tier=Tier.CONVERGENCE,
        question=f"Does verl's own trainer learn with {algorithm.upper()} on this cell's device?",
        facets=FACETS,
        measurements=TRAINER_FORMAT,
        run=run,
        judge=judge,
        needs=("environment",),
        params={"algorithm": algorithm},
        device=True,
        timeout_s=TIMEOUT_S + 60.0,
        expected_s=120.0,
        applies=applies,
    )


CHECKS = (_check("grpo"), _check("gspo"))
