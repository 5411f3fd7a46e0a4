"""The settings of the trainer's tiny runs, as command lines of different versions of verl."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.convergence.trainer.trainer_recipe import (
    ONE_STEP_OFF,
    ONE_STEP_OFF_RECIPE,
    RECIPES,
    one_step_off_overrides,
    overrides,
    ray_overrides,
    version_of,
)
from harness.errors import InputError

TASK = Path("/task")


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
@pytest.mark.parametrize("verl", ["0.6.1", "0.7.1", "0.9.1"])
def test_the_loss_is_what_the_recipe_says(algorithm, verl):
    found = overrides(RECIPES[algorithm], version_of(verl), task=TASK, device="npu")

    assert found["actor_rollout_ref.actor.policy_loss.loss_mode"] == RECIPES[algorithm].loss_mode
    assert found["actor_rollout_ref.actor.loss_agg_mode"] == RECIPES[algorithm].loss_agg_mode
    assert found["trainer.device"] == "npu"
    assert found["actor_rollout_ref.actor.strategy"] == "fsdp2"


def test_gspo_never_takes_verls_default_aggregation():
    assert RECIPES["gspo"].loss_agg_mode == "seq-mean-token-mean"


def test_rollout_is_synchronous_up_to_0_6_and_by_servers_after():
    modes = {
        verl: overrides(RECIPES["grpo"], version_of(verl), task=TASK, device="npu")[
            "actor_rollout_ref.rollout.mode"
        ]
        for verl in ("0.6.1", "0.7.0", "0.10.0.dev0")
    }

    assert modes == {"0.6.1": "sync", "0.7.0": "async", "0.10.0.dev0": "async"}


def test_the_reward_stands_where_the_version_looks_for_it():
    old = overrides(RECIPES["grpo"], (0, 7, 0), task=TASK, device="npu")
    new = overrides(RECIPES["grpo"], (0, 7, 1), task=TASK, device="npu")

    assert old["custom_reward_function.path"] == new["reward.custom_reward_function.path"]
    assert Path(old["custom_reward_function.path"]).is_file()


def test_a_mini_batch_is_split_over_the_cards():
    two = dataclasses.replace(RECIPES["grpo"], cards=2)

    one_card = overrides(RECIPES["grpo"], (0, 9, 1), task=TASK, device="npu")
    two_cards = overrides(two, (0, 9, 1), task=TASK, device="npu")

    name = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
    assert int(one_card[name]) == 2 * int(two_cards[name])


def test_ray_is_the_runs_own():
    found = ray_overrides(Path("/tmp/ray"), device="npu")

    assert found["+ray_kwargs.ray_init.address"] == "local"
    assert found["+ray_kwargs.ray_init._temp_dir"] == "/tmp/ray"


@pytest.mark.parametrize("text", ["", "main", "v0.6.1"])
def test_what_is_no_version_is_named(text):
    with pytest.raises(InputError, match="not a version of verl"):
        version_of(text)


def test_the_digest_is_of_the_settings():
    longer = dataclasses.replace(RECIPES["grpo"], steps=31)

    assert longer.digest() != RECIPES["grpo"].digest() != RECIPES["gspo"].digest()


@pytest.mark.parametrize("entry", [ONE_STEP_OFF, ONE_STEP_OFF_RECIPE])
def test_one_step_off_samples_on_a_card_of_its_own(entry):
    found = one_step_off_overrides(entry)

    assert (found["trainer.n_gpus_per_node"], found["rollout.n_gpus_per_node"]) == ("1", "1")
    assert found["actor_rollout_ref.hybrid_engine"] == "false"


def test_released_one_step_off_hands_weights_over_in_small_buckets_by_our_group():
    """verl's default is two buckets of 2 GiB in each process."""
    found = one_step_off_overrides(ONE_STEP_OFF)

    engine = "actor_rollout_ref.rollout.checkpoint_engine"
    assert (
        found[f"{engine}.custom_backend_module"] == "harness.convergence.trainer.verl_extensions.weight_group"
    )
    assert int(found[f"{engine}.update_weights_bucket_megabytes"]) <= 8
    assert "actor_rollout_ref.rollout.name" not in found
