"""The check that trains the scaled-down recipe of a cell: where it applies, and what it starts."""

from __future__ import annotations

import pytest
from training_samples import stored

from harness.check import Completed
from harness.convergence.trainer import one_step_check, recipe_twin_check
from harness.convergence.trainer.trainer_measurements import TRAINER_FORMAT

RECIPE = {
    "name": "gspo",
    "kind": "train",
    "entry": "recipe.one_step_off_policy.main_ppo",
    "overrides": {"actor_rollout_ref.actor.clip_ratio_low": 3e-4, "data.train_batch_size": 32},
    "nodes": 1,
    "cards": 8,
    "model": "Qwen/Qwen2.5-0.5B-Instruct",
}
FACETS = {"versions": {"verl": "0.7.0.dev0@ccd7d934"}, "recipe": RECIPE, "device": {"kind": "sim"}}


class Context:
    """A task context in whose cell every program fails."""

    def __init__(self, folder):
        self.workdir, self.facets, self.started = folder, FACETS, []

    def in_cell(self, module, *arguments, timeout):
        self.started = [module, *arguments]
        return Completed(argv=(module,), returncode=1, tail="it does not start", seconds=timeout)


def test_it_starts_the_twin_and_judges_what_came_of_it(tmp_path):
    context = Context(tmp_path)
    measured = recipe_twin_check.run(context)

    words = " ".join(context.started)
    assert "--one-step-off --set actor_rollout_ref.actor.clip_ratio_low=0.0003 --steps 36" in words
    assert "train_batch_size" not in words
    judgement = recipe_twin_check.CHECK.judge(stored(TRAINER_FORMAT, measured.measurements), {})
    assert judgement.status.value == "fail"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"recipe": None}, "no recipe"),
        ({"recipe": {**RECIPE, "kind": "infer"}}, "only runs inference"),
        ({"versions": {"verl": "0.5.0"}}, "no rollout registry"),
        ({}, ""),
    ],
)
def test_where_it_applies(changed, said):
    assert said in recipe_twin_check.applies({**FACETS, **changed})
    assert bool(recipe_twin_check.applies({**FACETS, **changed})) == bool(said)


@pytest.mark.parametrize(
    ("versions", "kind", "why"),
    [
        ({"verl": "0.9.1"}, "sim", ""),
        ({"verl": "0.7.1"}, "sim", "needs verl 0.9 or later, and the cell has verl 0.7.1"),
        ({"verl": "0.7.0.dev0@ccd7d934"}, "sim", "needs verl 0.9 or later"),
        ({"verl": "0.9.1", "vllm_ascend": "0.23.0"}, "sim", "replaces vLLM by its own rollout"),
        ({"verl": "0.9.1"}, "npu", "two simulated devices"),
        ({}, "sim", "no verl"),
    ],
)
def test_released_one_step_off_is_for_simulated_cells_without_vllm(versions, kind, why):
    found = one_step_check.applies({"versions": versions, "device": {"kind": kind}})

    assert why in found
    assert bool(found) == bool(why)
