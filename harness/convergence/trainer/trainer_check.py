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
from harness.convergence.trainer.trainer_recipe import ALGORITHMS
from harness.outcome import Judgement, Measured, Tier

Measurements = TrainerMeasurements | TrainerProgramFailure
OLDEST = (0, 6)
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
    if not facets.get("versions", {}).get("verl"):
        return "this cell has no verl"
    if why := older_than(facets, OLDEST):
        return f"{why} has no rollout registry; this check needs verl 0.6 or later"
    return ""


def older_than(facets: Mapping[str, Any], version: tuple[int, int]) -> str:
    """The cell's release of verl, such as "verl 0.5.0", if it is older than `version`; otherwise ""."""
    release = str(facets.get("versions", {}).get("verl", "")).partition("@")[0]
    numbers = tuple(int(part) for part in release.split(".")[:2] if part.isdigit())
    # A development version of X.Y.0 can be as old as the release before it.
    before = numbers == version and release.endswith(".0.dev0") and version == OLDEST
    return f"verl {release}" if release and (numbers < version or before) else ""


CHECKS = tuple(
    Check(
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
    for algorithm in ALGORITHMS
)
