"""The check `recipe-twin`: trains a recipe's objective and training mode, scaled down to the tiny task.

`recipes.recipe_twin` decides what of the recipe the scaled-down run has. Every judgement lists what it leaves
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.check import Check, TaskContext
from harness.convergence.trainer import trainer_check as trainer
from harness.convergence.trainer.judging.failed_runs import TIMEOUT_S
from harness.convergence.trainer.trainer_measurements import TRAINER_FORMAT, TrainerProgramFailure
from harness.outcome import Judgement, Measured, Tier

# More steps than the other trainer checks: one-step-off-policy training and the clip range of the GSPO paper
# learn more slowly than the recipes of `harness.convergence.trainer.trainer_recipe`.
STEPS = 36


def run(context: TaskContext) -> Measured[trainer.Measurements]:
    """Train the scaled-down recipe in the cell. A trainer that hangs or crashes is a measurement."""
    # Every plan imports this module, and these two cost time.
    from harness.convergence.recipes.recipe_launch import twin_of
    from harness.convergence.trainer.trainer_runs import measure

    twin = twin_of(context.facets["recipe"])
    assert twin is not None, "`applies` accepts only recipes that train"
    measured = measure(context, [*twin.arguments, "--steps", str(STEPS)])
    if isinstance(measured.measurements, TrainerProgramFailure):
        return measured
    parts = tuple(part.sentence for part in twin.left_out)
    return replace(measured, measurements=replace(measured.measurements, left_out=parts))


def judge(measured: trainer.Measurements, params: Mapping[str, Any]) -> Judgement:
    """Judge the run like the other trainer checks, and list what it leaves out."""
    judgement = trainer.judge(measured, params)
    if isinstance(measured, TrainerProgramFailure):
        return judgement
    parts = tuple(f"Not in this run: {part}." for part in measured.left_out)
    return replace(judgement, reasons=(*judgement.reasons, *parts))


def applies(facets: Mapping[str, Any]) -> str:
    """Why there is no scaled-down recipe to train, or ""."""
    recipe = facets.get("recipe")
    if recipe is None:
        return "the cell has no recipe"
    if recipe["kind"] == "infer":
        return "the cell's recipe only runs inference"
    return trainer.applies(facets)


CHECK = Check(
    name="recipe-twin",
    tier=Tier.CONVERGENCE,
    question="Does a scaled-down version of this cell's recipe train on its device?",
    facets=(*trainer.FACETS, "recipe"),
    measurements=TRAINER_FORMAT,
    run=run,
    judge=judge,
    needs=("environment",),
    device=True,
    timeout_s=TIMEOUT_S + 60.0,
    expected_s=150.0,
    applies=applies,
)
