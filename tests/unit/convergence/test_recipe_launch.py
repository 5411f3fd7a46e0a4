"""Recipes as commands: what is started, with what environment, and what would make it fail."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from harness.convergence.recipes.recipe_launch import DETERMINISM, OBJECTIVE, render, twin_of
from harness.convergence.trainer import trainer_program
from harness.convergence.trainer.trainer_recipe import RECIPES, overrides
from harness.matrix.reading.load_matrix import load_matrix

MATRIX = load_matrix(Path(__file__).parents[3] / "matrix.yaml")


def facet(**changes):
    return {
        "name": "smoke",
        "kind": "train",
        "algorithm": "grpo",
        "entry": "verl.trainer.main_ppo",
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "nodes": 1,
        "cards": 8,
        "env": {"HCCL_CONNECT_TIMEOUT": "3600"},
        "overrides": {
            "data.train_files": "${DATA_ROOT}/gsm8k/train.parquet",
            "data.train_batch_size": 128,
            "actor_rollout_ref.rollout.n": 4,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
            "actor_rollout_ref.rollout.tensor_model_parallel_size": 2,
            "actor_rollout_ref.rollout.gpu_memory_utilization": 0.6,
        },
        **changes,
    }


def shipped(name):
    recipe = MATRIX.recipes[name]
    names = ("name", "kind", "algorithm", "entry", "overrides", "env", "nodes", "cards", "model")
    return {field: getattr(recipe, field) for field in names}


def test_one_node_is_started_with_its_environment():
    launch = render(facet(), locations={"DATA_ROOT": "/data"})

    assert launch.submit[:5] == ("env", "HCCL_CONNECT_TIMEOUT=3600", "python3", "-m", "verl.trainer.main_ppo")
    assert "data.train_files=/data/gsm8k/train.parquet" in launch.argv
    assert launch.problems == launch.unknown == ()
    assert "120 s" in launch.environment[0].reason


def test_several_nodes_are_a_job_of_a_cluster():
    launch = render(facet(nodes=2), locations={}, address="http://head:8265", config="ppo_megatron_trainer")
    words = list(launch.submit)

    assert words[:4] == ["ray", "job", "submit", "--address=http://head:8265"]
    runtime = next(word for word in words if word.startswith("--runtime-env-json="))
    assert json.loads(runtime.partition("=")[2]) == {"env_vars": {"HCCL_CONNECT_TIMEOUT": "3600"}}
    assert "--config-name=ppo_megatron_trainer.yaml" in words[words.index("--") :]


def test_a_location_nobody_named_is_kept_and_told():
    launch = render(facet(), locations={})

    assert launch.unknown == ("DATA_ROOT",)
    assert "data.train_files=${DATA_ROOT}/gsm8k/train.parquet" in launch.argv


def test_files_that_are_not_there_are_named():
    launch = render(facet(), locations={"DATA_ROOT": "/data"}, exists=lambda _path: False)

    assert launch.problems == ("data.train_files: /data/gsm8k/train.parquet does not exist on this runner",)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", 3, "8 cards are not divisible by"),
        ("actor_rollout_ref.rollout.data_parallel_size", 8, "tensor parallel size 2 x data parallel size 8"),
        ("data.train_batch_size", 127, "127 prompts x 4 samples cannot be divided among 8 replicas"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 256, "larger than the batch of 128"),
        ("+actor_rollout_ref.actor.megatron.pipeline_model_parallel_size", 3, "model parallel size 3"),
    ],
)
def test_groups_that_do_not_divide_are_found_before_the_start(key, value, problem):
    launch = render(facet(overrides={**facet()["overrides"], key: value}), locations={})

    assert problem in " ".join(launch.problems)


def test_a_model_that_cannot_fit_is_found_before_the_start():
    launch = render(facet(model="Qwen/Qwen2.5-72B-Instruct"), locations={})

    assert launch.memory.training == 144.0
    assert len(launch.problems) == 2


def test_a_rollout_with_cards_of_its_own_is_counted_apart():
    own = {
        "rollout.nnodes": 1,
        "rollout.n_gpus_per_node": 2,
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": 6,
    }
    apart = facet(overrides={**facet()["overrides"], **own, "data.train_batch_size": 96}, model="3B")

    assert render(apart, locations={}).problems == ()
    assert render(apart, locations={}).memory.training == 8.0
    assert "6 cards for training and 2 for the rollout are more than 7" in " ".join(
        render({**apart, "cards": 7}, locations={}).problems
    )


def test_experts_are_spread_over_data_parallel_ranks():
    spread = {
        **facet()["overrides"],
        "+actor_rollout_ref.rollout.enable_expert_parallel": "true",
        "+actor_rollout_ref.rollout.dp_model_parallel_size": 4,
    }

    assert render(facet(overrides=spread, model="30B"), locations={}).memory.rollout == 60 / 8


def test_more_cards_than_the_hosts_have_are_found_before_the_start():
    """verl would wait for Ray to have them."""
    launch = render(facet(overrides={"trainer.n_gpus_per_node": 16, "trainer.nnodes": 1}), locations={})

    assert any("request more than 1 x 8 cards" in problem for problem in launch.problems)


def test_what_no_wheel_has_is_brought_to_the_nodes():
    recipes = (facet(entry="recipe.dapo.main_dapo", env={}, nodes=nodes) for nodes in (1, 2))
    one, two = (render(recipe, locations={}) for recipe in recipes)

    assert (
        one.folder
        == two.folder
        == ("the root of a checkout of verl, because verl's wheels do not contain the package recipe")
    )
    assert "--working-dir=." in two.submit
    assert not any("--runtime-env-json" in word for word in two.submit)
    assert "--working-dir=." not in render(facet(nodes=2), locations={}).submit


def test_a_script_says_what_its_own_file_has_to_hold():
    launch = render(
        facet(entry="models/infer.sh", kind="infer", overrides={"world_size": 1, "model_path": "${M}/a"}),
        locations={"M": "/models"},
    )

    assert launch.argv == ("bash", "models/infer.sh")
    assert launch.as_json()["settings"] == {"world_size": "1", "model_path": "/models/a"}
    assert "models/infer.sh" in launch.folder


def test_what_is_known_to_fail_is_a_problem():
    assert render(facet(), locations={}, known_problems=["it stops"]).problems == ("it stops",)


def test_determinism_is_asked_for():
    plain, equal = (render(facet(), locations={}, deterministic=flag) for flag in (False, True))
    names = {variable.name for variable in equal.environment} - {
        variable.name for variable in plain.environment
    }

    assert names == set(DETERMINISM)


# Known findings of these recipes, which matrix.yaml lists.
KNOWN = {
    "gspo-qwen25-3b": ("trainer.nnodes=1 and trainer.n_gpus_per_node=16 request more than 1 x 8 cards",),
    "gspo-qwen3-30b-a3b": ("tensor parallel size 4 x data parallel size 8",),
}


@pytest.mark.parametrize("name", sorted(MATRIX.recipes))
def test_every_shipped_recipe_renders_with_no_problem_but_the_known(name):
    places = {"DATA_ROOT": "/data", "MODEL_ROOT": "/models"}
    launch = render(shipped(name), locations=places)

    expected = KNOWN.get(name, ())
    assert len(launch.problems) == len(expected)
    assert all(text in problem for text, problem in zip(expected, launch.problems, strict=True))
    assert launch.unknown == ()
    assert shlex.split(launch.as_json()["command"]) == list(launch.submit)
    assert all(variable.reason and variable.source for variable in launch.environment)


@pytest.mark.parametrize("name", sorted(MATRIX.recipes))
def test_the_twin_of_every_recipe_sets_only_what_the_tiny_run_has(name):
    twin = twin_of(shipped(name))
    if MATRIX.recipes[name].kind == "infer":
        assert twin is None
        return
    known = overrides(RECIPES["grpo"], (0, 9, 1), task=Path("/t"), device="npu")

    assert set(twin.settings) - set(known) <= {
        "actor_rollout_ref.actor.clip_ratio_c",
        "trainer.use_legacy_worker_impl",
    }
    assert set(twin.settings) <= set(OBJECTIVE)
    assert twin.one_step_off == (name == "one-step-off-2card")
    assert trainer_program.parser().parse_args(
        [*twin.arguments, "--device", "npu", "--folder", "f", "--out", "o"]
    )


def test_the_twin_keeps_the_workers_of_the_engine():
    twin = twin_of(shipped("gspo-engine-worker"))

    assert twin.algorithm == "gspo"
    assert twin.settings["trainer.use_legacy_worker_impl"] == "disable"
    assert twin.settings["actor_rollout_ref.actor.clip_ratio_low"] == "0.0003"
