"""`npu-matrix recipe render` on the matrix of this repository."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner
from small_upstream import Git

from harness.cli.app import app
from harness.errors import HarnessError
from harness.package import shipped_file


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
    assert "--config-name=ppo_megatron_trainer" in words
    assert "data.train_files=/data/dapo-math-17k.parquet" in words
    assert report["unknown_locations"] == ["MODEL_ROOT"]


def test_what_the_rules_call_an_error_would_fail():
    code, out = ask("one-step-off-2card", "--location", "DATA_ROOT=/data", "--location", "MODEL_ROOT=/models")

    assert code == 1
    assert 'would fail:\n  one_step_off_policy stops with "NCCL is not available" (HCCL-ONESTEP)' in out
    assert "run in this folder: the root of a checkout of verl" in out


def test_what_lint_reads_in_the_commit_of_verl_would_fail_too(tmp_path, monkeypatch):
    upstream = Git(tmp_path / "verl")
    commit = upstream.commit("0.7.0.dev0", "", "a verl without trainer")
    text = shipped_file("matrix.yaml").read_text("utf-8")
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(text.replace("ab0705220a95952219111409d8f971872002c193", commit), "utf-8")
    monkeypatch.setenv("NPU_MATRIX_MATRIX", str(matrix))
    missing = "has no module verl.trainer.main_ppo"
    monkeypatch.delenv("NPU_MATRIX_MIRRORS", raising=False)
    assert missing not in ask("gspo-qwen25-3b")[1]
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path))
    code, out = ask("gspo-qwen25-3b")
    assert code == 1
    assert missing in out


def test_a_setting_can_be_changed():
    code, out = ask("gspo-qwen25-3b")
    assert code == 1
    assert "request more than 1 x 8 cards" in out

    code, out = ask("gspo-qwen25-3b", "--set", "trainer.n_gpus_per_node=8", "--json")
    assert code == 0
    assert "trainer.n_gpus_per_node=8" in json.loads(out)["argv"]
    assert "trainer.n_gpus_per_node=16" not in json.loads(out)["argv"]


def test_a_setting_replaces_its_name_with_hydras_plus():
    _, out = ask("gspo-async", "--set", "reward_model.reward_kwargs.max_resp_len=64", "--json")

    words = [word for word in json.loads(out)["argv"] if "max_resp_len" in word]
    assert words == ["+reward_model.reward_kwargs.max_resp_len=64"]


def test_a_script_is_told_with_what_its_file_has_to_say():
    code, out = ask("gptoss-infer", "--location", "MODEL_ROOT=/models")

    assert code == 0
    assert "to be set in its own configuration file:\n  model_name: gpt_oss_20b" in out


def test_another_recipe_can_be_put_on_a_cell():
    _, out = ask("verl-0-9-1-sim", "--recipe", "gspo-async", "--json")

    assert json.loads(out)["recipe"] == "gspo-async"


def test_files_that_are_not_here_make_it_exit_with_1(tmp_path):
    code, out = ask("gspo-async", "--location", f"DATA_ROOT={tmp_path}", "--check-files")

    assert code == 1
    assert f"{tmp_path}/gsm8k/train.parquet does not exist on this runner" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-cell",),
        ("gspo-async", "--recipe", "no-such-recipe"),
        ("gspo-async", "--runner", "nowhere"),
        ("gspo-async", "--location", "DATA_ROOT"),
        ("gspo-async", "--set", "trainer.nnodes"),
    ],
)
def test_what_cannot_be_meant_is_named(arguments):
    with pytest.raises(HarnessError):
        ask(*arguments)
