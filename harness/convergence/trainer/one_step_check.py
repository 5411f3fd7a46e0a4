"""The check `trainer-one-step-off`: one-step-off-policy training with the rollout on a second device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.convergence.telemetry.series import decode_series
from harness.convergence.trainer import trainer_check as trainer
from harness.convergence.trainer.judging.failed_runs import TIMEOUT_S, notes
from harness.convergence.trainer.recipe_twin_check import STEPS
from harness.convergence.trainer.trainer_measurements import TRAINER_FORMAT, TrainerProgramFailure
from harness.outcome import Judgement, Measured, Status, Tier

# One algorithm is enough: compared with `trainer-grpo`, only the source of the responses changes.
ALGORITHM = "grpo"
# verl's wheels include the trainer from 0.8.0 on; it was tested from 0.9 on. The check `recipe-twin` covers
# the older recipes of verl.
OLDEST = (0, 9)


def run(context: TaskContext) -> Measured[trainer.Measurements]:
    """Train in the cell on two devices. A trainer that hangs or crashes is a measurement, not an error."""
    from harness.convergence.trainer.trainer_runs import measure

    return measure(context, ["--algorithm", ALGORITHM, "--one-step-off", "--steps", str(STEPS)])


def judge(measured: trainer.Measurements, params: Mapping[str, Any]) -> Judgement:
    """Judge as `trainer_check.judge` does, and fail if the rollout's weights are more than one step old."""
    from harness.convergence.trainer.judging.weight_staleness import measure_staleness

    judgement = trainer.judge(measured, params)
    if isinstance(measured, TrainerProgramFailure) or measured.state != "measured":
        return judgement
    recipe = measured.recipe
    updates = recipe.epochs * recipe.prompts // recipe.mini_batch
    found = measure_staleness(decode_series(measured.series), updates)
    if found is not None and found.alarm:
        more = judgement if judgement.status is Status.FAIL else None
        return Judgement(
            status=Status.FAIL,
            reasons=(found.sentence(), *(more.reasons if more else notes(measured))),
            remedies=(_LOST_REMEDY, *(more.remedies if more else ())),
        )
    if judgement.status is not Status.PASS:
        return judgement
    if found is None:
        reason = (
            "verl did not log the difference between rollout and trainer, so a lost weight sync would not be "
            "detected."
        )
        return Judgement(status=Status.INCONCLUSIVE, reasons=(reason, *judgement.reasons))
    return Judgement(status=Status.PASS, reasons=(found.sentence(), *judgement.reasons))


_LOST_REMEDY = "Look at the weight sync: does every update reach the rollout, and does the rollout load it?"


def applies(facets: Mapping[str, Any]) -> str:
    """Why this check cannot run in this cell, or ""."""
    if old := trainer.older_than(facets, OLDEST):
        return f"this check needs verl 0.9 or later, and the cell has {old}"
    if facets.get("versions", {}).get("vllm_ascend"):
        return "this check replaces vLLM by its own rollout, so it runs in cells without vLLM only"
    if facets["device"]["kind"] != "sim":
        return "this check runs on two simulated devices only; on NPUs, use a recipe with two cards"
    return trainer.applies(facets)


CHECK = Check(
    name="trainer-one-step-off",
    tier=Tier.CONVERGENCE,
    question="Does verl learn with one-step-off-policy training and the rollout on a second device?",
    facets=trainer.FACETS,
    measurements=TRAINER_FORMAT,
    run=run,
    judge=judge,
    needs=("environment",),
    params={"algorithm": ALGORITHM, "steps": STEPS},
    device=True,
    timeout_s=TIMEOUT_S + 60.0,
    expected_s=150.0,
    applies=applies,
)
