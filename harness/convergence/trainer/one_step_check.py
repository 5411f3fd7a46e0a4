"""Does released verl train one step off its policy, with its rollout on a device of its own?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.convergence.trainer import trainer_check as trainer
from harness.convergence.trainer.recipe_twin_check import STEPS
from harness.convergence.trainer.trainer_measurements import TRAINER_FORMAT, TrainerProgramFailure
from harness.outcome import Judgement, Measured, Status, Tier

# One is enough: what differs from `trainer-grpo` is where responses come from, not what is learned from them.
ALGORITHM = "grpo"
# Wheels from 0.8.0 on have it, and it was tried from here on. Older recipes of verl's are `recipe-twin`'s.
OLDEST = (0, 9)


def run(context: TaskContext) -> Measured[trainer.Measurements]:
    """Train in the cell on two devices; a trainer that hangs or crashes is a measurement."""
    return trainer.measure(context, ["--algorithm", ALGORITHM, "--one-step-off", "--steps", str(STEPS)])


def judge(measured: trainer.Measurements, params: Mapping[str, Any]) -> Judgement:
    """As `trainer.judge`, and that the rollout's weights are no more than a step old."""
    from harness.convergence.telemetry.series import decode_series
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
            reasons=(found.sentence(), *(more.reasons if more else trainer.notes(measured))),
            remedies=(_LOST_REMEDY, *(more.remedies if more else ())),
        )
    if judgement.status is not Status.PASS:
        return judgement
    if found is None:
        reason = "verl did not log how far rollout and trainer lie apart, so lost weights would not show."
        return Judgement(status=Status.INCONCLUSIVE, reasons=(reason, *judgement.reasons))
    return Judgement(status=Status.PASS, reasons=(found.sentence(), *judgement.reasons))


_LOST_REMEDY = (
    "Look at the hand-over of weights: whether each update reaches the rollout, and whether it loads it."
)


def applies(facets: Mapping[str, Any]) -> str:
    """Why this cell's verl cannot be driven so, or ""."""
    versions = facets.get("versions", {})
    version = str(versions.get("verl", "")).partition("@")[0]
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if version and numbers < OLDEST:
        return f"one-step-off-policy training is driven from verl 0.9 on, and this is {version}"
    if versions.get("vllm_ascend"):
        return "our rollout takes vLLM's place in it, which a cell without vLLM shows as well"
    if facets["device"]["kind"] != "sim":
        return "it takes two devices, which are simulated; on cards a recipe asks for them"
    return trainer.applies(facets)


CHECK = Check(
    name="trainer-one-step-off",
    tier=Tier.CONVERGENCE,
    question="Does verl learn one step off its policy, with a rollout on a device of its own?",
    facets=trainer.FACETS,
    measurements=TRAINER_FORMAT,
    run=run,
    judge=judge,
    needs=("environment",),
    params={"algorithm": ALGORITHM, "steps": STEPS},
    device=True,
    timeout_s=trainer.TIMEOUT_S + 60.0,
    expected_s=150.0,
    applies=applies,
)
