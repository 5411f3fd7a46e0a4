"""`npu-matrix recipe render` on the matrix of this repository."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from harness.cli.app import app
from harness.errors import HarnessError


def ask(*arguments, environ=None):
    result = CliRunner().invoke(
        app, ["recipe", "render", *arguments], env=environ or {}, standalone_mode=False
    )
    if isinstance(result.exception, HarnessError):
        raise result.exception
    assert result.exception is None, result.exception
    return result.return_value, result.stdout


def test_the_command_and_why_each_variable_is_set():
    code, out = ask("gspo-async", "--location", "DATA_ROOT=/data", "--location", "MODEL_ROOT=/models")

    assert code == 0
    assert "VLLM_ASCEND_ENABLE_NZ=0\n      because weights in the NZ format" in out
    assert "actor_rollout_ref.model.path=/models/Qwen2.5-3B-Instruct" in out
    assert "not placed" not in out


def test_several_nodes_are_submitted_with_megatrons_configuration():
    _, out = ask("gspo-qwen3-30b-a3b", "--json", environ={"NPU_MATRIX_DATA_ROOT": "/data"})
    report = json.loads(out)

    assert report["schema"] == {"name": "npu-matrix.recipe", "version": 1}
    words = shlex.split(report["command"])
    assert words[:3] == ["ray", "job", "submit"]
    assert "--config-name=ppo_megatron_trainer.yaml" in words
    assert "data.train_files=/data/dapo-math-17k.parquet" in words
    assert report["unknown_locations"] == ["MODEL_ROOT"]


def test_another_recipe_can_be_put_on_a_cell():
    _, out = ask("verl-0-9-1-sim", "--recipe", "gspo-async", "--json")

    assert json.loads(out)["recipe"] == "gspo-async"


def test_files_that_are_not_here_make_it_exit_with_1(tmp_path):
    code, out = ask("gspo-async", "--location", f"DATA_ROOT={tmp_path}", "--check-files")

    assert code == 1
    assert f"there is no {tmp_path}/gsm8k/train.parquet on this runner" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-cell",),
        ("gspo-async", "--recipe", "no-such-recipe"),
        ("gspo-async", "--runner", "nowhere"),
        ("gspo-async", "--location", "DATA_ROOT"),
    ],
)
def test_what_cannot_be_meant_is_named(arguments):
    with pytest.raises(HarnessError):
        ask(*arguments)
