"""Settings of a tiny run of verl's trainer, and the Hydra overrides that set them in a version of verl.

In-cell module; standard library only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from harness.convergence.smoke.training_settings import TrainingSettings
from harness.convergence.trainer.tiny_task import PROMPT_TOKENS, RESPONSE_TOKENS
from harness.convergence.trainer.verl_extensions import reward
from harness.errors import InputError

ENTRY = "verl.trainer.main_ppo"
# The modules for one-step-off-policy training with the rollout on separate cards: the first is in releases of
# verl, the second in checkouts up to verl 0.7.0. The wheel of 0.7.1 has the configuration of the first module
# without the module itself.
ONE_STEP_OFF = "verl.experimental.one_step_off_policy.main_ppo"
ONE_STEP_OFF_RECIPE = "recipe.one_step_off_policy.main_ppo"
# The module for DAPO with dynamic sampling, in checkouts up to verl 0.7.0.
DAPO_RECIPE = "recipe.dapo.main_dapo"
# Prompts that DAPO samples at a time, for each prompt that it trains. Groups without variance are dropped.
DAPO_SAMPLED = 3
DAPO_EPOCHS = 10
WEIGHT_GROUP = "harness.convergence.trainer.verl_extensions.weight_group"
ALGORITHMS = ("grpo", "gspo")
# The first version whose rollouts are servers.
SERVER_MODE = (0, 7)
# The first version with a configuration group for rewards.
REWARD_GROUP = (0, 7, 1)
# The first version whose default trainer moves its data through TransferQueue.
TRANSFER_QUEUE = (0, 9)

Version = tuple[int, ...]
HydraValue = str | int | float | bool | Path
HydraSettings = dict[str, HydraValue]


@dataclass(frozen=True, kw_only=True)
class TrainerRecipe(TrainingSettings):
    """Settings of a tiny run of verl's trainer.

    mini_batch: prompts per optimizer step. epochs: passes over the responses of a step. cards: devices, with
    one training worker each.
    """

    program_version: ClassVar[int] = 2

    loss_mode: str
    learning_rate: float = 1e-3
    steps: int = 24
    mini_batch: int = 8
    epochs: int = 2
    cards: int = 1
    seed: int = 0


# With this learning rate, batch and clip range the reward rises from 0.06 to 0.9 in 24 steps of verl 0.6.1
# (measured). `harness.convergence.smoke.smoke_recipe` explains why GSPO's clip range is much wider than in
# the paper. GSPO needs the aggregation seq-mean-token-mean: verl's default is another objective from 0.9.1
# on.
RECIPES = {
    "grpo": TrainerRecipe(
        algorithm="grpo",
        loss_mode="vanilla",
        loss_agg_mode="token-mean",
        clip_ratio_low=0.2,
        clip_ratio_high=0.28,
    ),
    "gspo": TrainerRecipe(
        algorithm="gspo",
        loss_mode="gspo",
        loss_agg_mode="seq-mean-token-mean",
        clip_ratio_low=0.1,
        clip_ratio_high=0.2,
    ),
}


def with_samples(recipe: TrainerRecipe, samples: int) -> TrainerRecipe:
    """The recipe with this number of responses per prompt, and as many responses per step and mini-batch.

    Raises InputError if a mini-batch cannot be divided by it.
    """
    rows, mini = recipe.rows, recipe.mini_batch * recipe.samples
    if samples < 2 or mini % samples:
        raise InputError(
            f"groups of {samples} responses cannot be trained",
            why=f"a mini-batch of {mini} responses contains whole groups",
            fix=f"give a divisor of {mini} above 1",
        )
    return replace(recipe, samples=samples, prompts=rows // samples, mini_batch=mini // samples)


def version_of(text: str) -> Version:
    """(0, 6, 1) for "0.6.1". Raises InputError when the text does not start with a number."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    if found is None:
        raise InputError(f"{text!r} is not a version of verl", fix="install a released verl in this cell")
    return tuple(int(part) for part in found.group().split("."))


def overrides(
    recipe: TrainerRecipe, verl: Version, *, task: Path, device: str, sync: bool = False
) -> dict[str, str]:
    """Hydra overrides for `ENTRY`, by key.

    device: npu or cpu. task: the folder that `tiny_task.write` filled. sync: the rollout runs in the
    trainer's processes, also in a verl that has servers.
    """
    asynchronous = verl >= SERVER_MODE and not sync
    rows_per_card = recipe.rows // recipe.cards
    settings: HydraSettings = {
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "data.train_files": task / "train.parquet",
        "data.val_files": task / "val.parquet",
        "data.train_batch_size": recipe.prompts,
        "data.val_batch_size": 1,
        "data.max_prompt_length": PROMPT_TOKENS,
        "data.max_response_length": RESPONSE_TOKENS,
        # Prompts keep the order of the file, which depends on the seed.
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "data.filter_overlong_prompts": False,
        "actor_rollout_ref.model.path": task / "model",
        "actor_rollout_ref.model.use_remove_padding": False,
        "actor_rollout_ref.model.enable_gradient_checkpointing": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "eager",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.fsdp_config.dtype": "float32",
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision": (
            "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"
        ),
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.actor.optim.lr": recipe.learning_rate,
        "actor_rollout_ref.actor.optim.betas": "[0.9,0.99]",
        "actor_rollout_ref.actor.optim.weight_decay": 0.0,
        "actor_rollout_ref.actor.ppo_mini_batch_size": recipe.mini_batch,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": recipe.mini_batch
        * recipe.samples
        // recipe.cards,
        "actor_rollout_ref.actor.ppo_epochs": recipe.epochs,
        "actor_rollout_ref.actor.use_kl_loss": False,
        "actor_rollout_ref.actor.entropy_coeff": 0,
        "actor_rollout_ref.actor.policy_loss.loss_mode": recipe.loss_mode,
        "actor_rollout_ref.actor.loss_agg_mode": recipe.loss_agg_mode,
        "actor_rollout_ref.actor.clip_ratio": recipe.clip_ratio_low,
        "actor_rollout_ref.actor.clip_ratio_low": recipe.clip_ratio_low,
        "actor_rollout_ref.actor.clip_ratio_high": recipe.clip_ratio_high,
        "actor_rollout_ref.rollout.name": "hf",
        "actor_rollout_ref.rollout.mode": "async" if asynchronous else "sync",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.n": recipe.samples,
        "actor_rollout_ref.rollout.load_format": "dummy",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": rows_per_card,
        # Only read if the recipe has a KL term.
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": rows_per_card,
        # verl compares the log-probabilities of the rollout with those of the trainer.
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "trainer.device": device,
        "trainer.n_gpus_per_node": recipe.cards,
        "trainer.nnodes": 1,
        "trainer.logger": '["console"]',
        "trainer.total_epochs": 1,
        "trainer.total_training_steps": recipe.steps,
        "trainer.save_freq": -1,
        "trainer.test_freq": -1,
        "trainer.val_before_train": False,
        # Balancing distributes rows over the cards by length. On one card it would only reorder mini-batches.
        "trainer.balance_batch": recipe.cards > 1,
        "trainer.default_local_dir": task / "checkpoints",
    }
    grouped = verl >= REWARD_GROUP
    rewards = "reward.custom_reward_function" if grouped else "custom_reward_function"
    settings |= {f"{rewards}.path": reward.__file__, f"{rewards}.name": "compute_score"}
    if asynchronous:
        settings["actor_rollout_ref.rollout.agent.num_workers"] = 1
    if grouped:
        settings["reward.num_workers"] = 1
    if verl >= TRANSFER_QUEUE:
        # By default, eight storage units request one processor each; with fewer, verl would wait forever.
        settings |= {
            "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
            "transfer_queue.backend.SimpleStorage.total_storage_size": 4096,
        }
    return {key: _text(value) for key, value in settings.items()}


def one_step_off_overrides(entry: str) -> dict[str, str]:
    """Additional overrides for one-step-off-policy training, with one card for training and one for rollout.

    entry: `ONE_STEP_OFF` or `ONE_STEP_OFF_RECIPE`.
    """
    settings: HydraSettings = {
        # The configuration of this trainer gives the folder of verl's configuration relative to a checkout.
        "hydra.searchpath": "[pkg://verl/trainer/config]",
        "actor_rollout_ref.hybrid_engine": False,
        "critic.strategy": "fsdp2",
        "trainer.n_gpus_per_node": 1,
        "rollout.nnodes": 1,
        "rollout.n_gpus_per_node": 1,
    }
    engine = "actor_rollout_ref.rollout.checkpoint_engine"
    if entry == ONE_STEP_OFF:
        settings |= {
            # verl uses this name for HCCL, too.
            f"{engine}.backend": "nccl",
            f"{engine}.custom_backend_module": WEIGHT_GROUP,
            # The default, two buckets of 2 GiB per process, is too large for this tiny model.
            f"{engine}.update_weights_bucket_megabytes": 1,
            # In bypass mode, the default of this trainer, verl uses the log-probabilities of the rollout
            # instead of computing them, so a lost weight sync would not be detected.
            "algorithm.rollout_correction.bypass_mode": False,
        }
    else:
        # The recipe supports the engine name vllm; `one_step_rollout` registers our rollout under this name.
        settings |= {"actor_rollout_ref.rollout.name": "vllm"}
    return {key: _text(value) for key, value in settings.items()}


def dapo_overrides(recipe: TrainerRecipe) -> dict[str, str]:
    """Additional overrides for `DAPO_RECIPE`."""
    settings: HydraSettings = {
        # The configuration of this trainer gives the folder of verl's configuration relative to a checkout.
        "hydra.searchpath": "[pkg://verl/trainer/config]",
        "data.gen_batch_size": DAPO_SAMPLED * recipe.prompts,
        # A step consumes prompts until enough groups have variance; the file is read again when it ends.
        "trainer.total_epochs": DAPO_EPOCHS,
    }
    return {key: _text(value) for key, value in settings.items()}


def ray_overrides(folder: Path, *, device: str, worker: Sequence[str] = ()) -> dict[str, str]:
    """Overrides for a private Ray: it joins no other cluster, and writes into `folder` only.

    worker: the command that starts Ray's workers instead of Python.
    """
    settings: HydraSettings = {
        # Logical processors: each actor of verl requests one, whatever load it causes.
        "ray_kwargs.ray_init.num_cpus": 16,
        "+ray_kwargs.ray_init.address": "local",
        "+ray_kwargs.ray_init.namespace": "npu-matrix-trainer",
        "+ray_kwargs.ray_init._temp_dir": folder,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+ray_kwargs.ray_init.object_store_memory": 200_000_000,
    }
    if worker:
        settings |= {"+ray_kwargs.ray_init.runtime_env.py_executable": f"'{shlex.join(worker)}'"}
    if device == "cpu":
        # verl requests GPUs from Ray when there is no NPU, and its resource pools request "cpu".
        settings |= {"+ray_kwargs.ray_init.num_gpus": 1, "+ray_kwargs.ray_init.resources.cpu": 4}
    return {key: _text(value) for key, value in settings.items()}


def _text(value: HydraValue) -> str:
    """The value in Hydra's syntax."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
