"""Recipes as commands: what is started, with what environment, and what would make it fail."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from harness.convergence.recipes.recipe_launch import DETERMINISM, render, twin_of
from harness.convergence.trainer import trainer_program
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
    launch = render(
        facet(nodes=2), locations={}, address="http://head:8265", options={"--config-path": "config"}
    )
    words = list(launch.submit)

    assert words[:4] == ["ray", "job", "submit", "--address=http://head:8265"]
    runtime = next(word for word in words if word.startswith("--runtime-env-json="))
    assert json.loads(runtime.partition("=")[2]) == {"env_vars": {"HCCL_CONNECT_TIMEOUT": "3600"}}
    assert "--config-path=config" in words[words.index("--") :]


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
    ports = {"HCCL_HOST_SOCKET_PORT_RANGE": "61000-61050", "HCCL_NPU_SOCKET_PORT_RANGE": "61051-61100"}
    places = {"DATA_ROOT": "/data", "MODEL_ROOT": "/models", "SOCKET_IFNAME": "eth0", **ports}
    launch = render(shipped(name), locations=places)

    expected = KNOWN.get(name, ())
    assert len(launch.problems) == len(expected)
    assert all(text in problem for text, problem in zip(expected, launch.problems, strict=True))
    assert launch.unknown == ()
    assert shlex.split(launch.as_json()["command"]) == list(launch.submit)
    assert all(variable.reason and variable.source for variable in launch.environment)


def test_the_environment_may_name_values_of_the_host():
    env = {"HCCL_SOCKET_IFNAME": "${SOCKET_IFNAME}"}
    assert render(facet(env=env), locations={"DATA_ROOT": "/d"}).unknown == ("SOCKET_IFNAME",)

    launch = render(facet(env=env), locations={"DATA_ROOT": "/d", "SOCKET_IFNAME": "eth0"})
    assert "HCCL_SOCKET_IFNAME=eth0" in launch.submit
    assert launch.unknown == ()


def plain(settings):
    return {key.lstrip("+"): value for key, value in settings.items()}


@pytest.mark.parametrize("name", sorted(MATRIX.recipes))
def test_every_setting_of_a_recipe_is_in_its_twin_or_in_the_list_of_what_it_leaves_out(name):
    twin = twin_of(shipped(name))
    if MATRIX.recipes[name].kind == "infer":
        assert twin is None
        return
    listed = {text.partition("=")[0] for part in twin.left_out for text in part.settings}
    harmless = ("1", "false", "-1")
    silent = {
        key: value
        for key, value in MATRIX.recipes[name].overrides.items()
        if key not in twin.settings and key not in listed and str(value).lower() not in harmless
    }
    answered = {"actor_rollout_ref.rollout.mode", "actor_rollout_ref.actor.strategy"}
    if twin.samples == silent.get("actor_rollout_ref.rollout.n"):
        answered.add("actor_rollout_ref.rollout.n")
    assert set(silent) <= answered
    assert all(part.what and part.unanswered for part in twin.left_out)
    assert trainer_program.parser().parse_args(
        [*twin.arguments, "--device", "npu", "--folder", "f", "--out", "o"]
    )


def test_the_twin_of_dapo_samples_groups_dynamically_and_shapes_overlong_rewards():
    twin = twin_of(shipped("plugin-dapo-qwen3-30b"))

    assert (twin.dapo, twin.experts, twin.samples) == (True, True, 16)
    assert twin.settings["algorithm.filter_groups.enable"] == "true"
    assert twin.settings["reward_model.overlong_buffer.enable"] == "true"
    assert twin.settings["reward_model.overlong_buffer.len"] == "2"
    assert twin.settings["data.max_response_length"] == "5"
    assert "--dapo" in twin.arguments


def test_the_twin_names_megatron_and_the_question_that_it_leaves_open():
    twin = twin_of(shipped("gspo-qwen3-30b-a3b"))

    (megatron,) = (part for part in twin.left_out if "Megatron" in part.what)
    assert "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4" in megatron.settings
    assert "MindSpeed" in megatron.unanswered
    assert (twin.experts, twin.sync) == (True, True)
    assert twin.settings["reward_model.reward_manager"] == "dapo"


def test_a_setting_that_nobody_knows_is_listed():
    twin = twin_of(facet(overrides={"actor_rollout_ref.actor.invented": 7}))

    (other,) = (part for part in twin.left_out if part.what == "other settings")
    assert other.settings == ("actor_rollout_ref.actor.invented=7",)


def test_the_twin_keeps_the_workers_of_the_engine():
    twin = twin_of(shipped("gspo-engine-worker"))

    assert twin.algorithm == "gspo"
    assert twin.settings["trainer.use_legacy_worker_impl"] == "disable"
    assert twin.settings["actor_rollout_ref.actor.clip_ratio_low"] == "0.0003"
