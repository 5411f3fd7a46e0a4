"""The checks of vllm-ascend that fail with the arguments with which verl starts vLLM."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from memory_tree import MemoryTree

from harness.compat.lint.engine_findings import ENGINE_RULE
from harness.compat.lint.engine_shape import annotated_fields, engine_shape
from harness.compat.lint.lint_scripts import lint_file
from harness.sources.tree import Tree, TreeFile

MAIN = """\
import hydra
from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    rollout = config.actor_rollout_ref.rollout
    engine_kwargs = {key: one for key, one in rollout.engine_kwargs.vllm.items() if one is not None}
    args = {
        "tensor_parallel_size": rollout.tensor_model_parallel_size,
        "enforce_eager": rollout.enforce_eager,
        **engine_kwargs,
    }
    args.update({"enable_expert_parallel": rollout.expert_parallel_size > 1})
    build_cli_args_from_config(args)
"""
BY_NAME = MAIN.replace("build_cli_args_from_config(args)", "LLM(model='m', **args)").replace(
    "import hydra", "import hydra\nfrom vllm import LLM"
)
AS_OPTIONS = MAIN.replace(
    "    build_cli_args_from_config(args)\n",
    """\
    server_args = ["serve", "m"]
    for k, v in args.items():
        if isinstance(v, bool):
            if v:
                server_args.append(f"--{k}")
        elif v is not None:
            server_args.append(f"--{k}")
            server_args.append(str(v))
""",
)
CONFIG = """\
actor_rollout_ref:
  rollout:
    tensor_model_parallel_size: 2
    expert_parallel_size: 1
    enforce_eager: False
    engine_kwargs: {vllm: {}}
"""
ENVIRONMENT = """\
import os
variables = {
    "VLLM_ASCEND_GROUPS": lambda: int(os.getenv("VLLM_ASCEND_GROUPS", 0)),
    "OTHER": lambda: int(os.getenv("OTHER", 0)),
}
def __getattr__(name):
    if name in variables:
        return variables[name]()
    raise AttributeError(name)
"""
CHECKS = """\
from vllm_ascend import envs
class Options:
    _defaults = {"policy": 2, "size": 0}
    def __init__(self, given):
        self.config = self._defaults.copy()
        for key, value in given.items():
            if key not in self.config:
                raise ValueError(f"no option {key}")
            self.config[key] = value
        if self.policy not in [1, 2]:
            raise ValueError("policy must be 1 or 2")
    def __getattr__(self, key):
        if key in self.config:
            return self.config[key]
        raise AttributeError(key)
class AscendConfig:
    def __init__(self, vllm_config):
        given = vllm_config.additional_config or {}
        self.options = Options(given.get("options", {}))
        parallel = vllm_config.parallel_config
        if given.get("graph", False):
            if vllm_config.model_config.enforce_eager:
                raise RuntimeError("graph needs graphs")
            if vllm_config.kv_transfer_config is None:
                raise RuntimeError("graph needs a transfer")
        if envs.VLLM_ASCEND_GROUPS and parallel.tensor_parallel_size % envs.VLLM_ASCEND_GROUPS:
            raise AssertionError(f"{parallel.tensor_parallel_size} in groups of {envs.VLLM_ASCEND_GROUPS}")
        if given.get("experts") and not parallel.enable_expert_parallel:
            raise AssertionError("experts need expert parallel")
        assert parallel.data_parallel_size == 1 or parallel.prefill_context_parallel_size == 1, "both"
        if given.get("sparse") and not vllm_config.model_config.is_sparse:
            raise AssertionError("the model is not sparse")
        if given.get("other") and not envs.OTHER:
            raise AssertionError("OTHER may be set outside")
"""
PLATFORM = """\
from vllm.platforms import Platform
from vllm_ascend.checks import AscendConfig
class NPUPlatform(Platform):
    device_type = "npu"
    @classmethod
    def check_and_update_config(cls, vllm_config):
        device = getattr(vllm_config, "device_config", None)
        if device is not None and device.device_type != cls.device_type:
            return
        AscendConfig(vllm_config)
"""
ENGINE = {
    "vllm_ascend/platform.py": PLATFORM,
    "vllm_ascend/checks.py": CHECKS,
    "vllm_ascend/envs.py": ENVIRONMENT,
}
KWARGS = "+actor_rollout_ref.rollout.engine_kwargs.vllm."


def tree(texts: dict[str, str]) -> Tree:
    return MemoryTree(files={path: TreeFile(data=text.encode()) for path, text in texts.items()})


def stops(
    folder: Path, settings: str, before: str = "", main: str = MAIN, vllm_ascend: str = "0.23.0"
) -> list[str]:
    verl = tree(
        {
            "verl/trainer/main_ppo.py": main,
            "verl/trainer/config/ppo_trainer.yaml": CONFIG,
            "verl/workers/rollout/vllm_rollout/utils.py": "def build_cli_args_from_config(config): pass\n",
        }
    )
    script = folder / "run.sh"
    script.write_text(f"{before}\npython -m verl.trainer.main_ppo \\\n  {settings}\n")
    versions = {"verl": "0.9.1", "vllm_ascend": vllm_ascend}
    found = lint_file(script, versions, verl, folder / "cache", tree(ENGINE)).findings
    assert not [one for one in lint_file(script, versions, verl).findings if one.rule == ENGINE_RULE]
    return [f"{one.line} {one.message.partition('stops: ')[2]}" for one in found if one.rule == ENGINE_RULE]


@pytest.mark.parametrize("main", [MAIN, BY_NAME, AS_OPTIONS])
@pytest.mark.parametrize(
    ("settings", "before", "expected"),
    [
        ("actor_rollout_ref.rollout.enforce_eager=True", "", []),
        (f"{KWARGS}additional_config.options.policy=3", "", ["3 policy must be 1 or 2"]),
        (f"{KWARGS}additional_config.options.policy=1", "", []),
        (f"{KWARGS}additional_config.options.polcy=1", "", ["3 no option polcy"]),
        (f"{KWARGS}additional_config.options={{polcy:1}}", "", ["3 no option polcy"]),
        (f"{KWARGS}additional_config.graph=True", "", ["3 graph needs a transfer"]),
        (f"{KWARGS}additional_config.graph=False", "", []),
        (f"{KWARGS}additional_config.graph=$1", "", []),
        (
            f"{KWARGS}additional_config.graph=True {KWARGS}kv_transfer_config.kv_role=kv_consumer",
            "",
            [],
        ),
        (f"{KWARGS}additional_config.experts=1", "", ["3 experts need expert parallel"]),
        (
            f"{KWARGS}additional_config.experts=1 actor_rollout_ref.rollout.expert_parallel_size=2",
            "",
            [],
        ),
        (
            f"{KWARGS}data_parallel_size=2 {KWARGS}prefill_context_parallel_size=2",
            "",
            ["3 both"],
        ),
        (f"{KWARGS}data_parallel_size=2", "", []),
        (f"{KWARGS}additional_config.sparse=1", "", []),
        (f"{KWARGS}additional_config.other=1", "", []),
        (
            "actor_rollout_ref.rollout.tensor_model_parallel_size=4",
            "export VLLM_ASCEND_GROUPS=3",
            ["3 4 in groups of 3"],
        ),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=4", "export VLLM_ASCEND_GROUPS=2", []),
        ("actor_rollout_ref.rollout.tensor_model_parallel_size=4", "export VLLM_ASCEND_GROUPS=$1", []),
    ],
)
def test_a_check_that_the_settings_reach_is_told(
    tmp_path: Path, settings: str, before: str, expected: list[str], main: str
) -> None:
    assert stops(tmp_path, settings, before, main) == expected


def test_all_conditions_around_a_check_are_named(tmp_path: Path) -> None:
    both = f"{KWARGS}additional_config.graph=True \\\n  actor_rollout_ref.rollout.enforce_eager=True"
    assert stops(tmp_path, both) == ["3 graph needs graphs"]


def test_without_a_known_vllm_nothing_is_followed(tmp_path: Path) -> None:
    assert stops(tmp_path, f"{KWARGS}additional_config.options.policy=3", vllm_ascend="0.23.0@abc") == []
    assert engine_shape("") is None
    assert engine_shape("99.0.0") is None


def test_the_arguments_of_vllm_and_what_they_become() -> None:
    for version in ("0.11.0", "0.13.0", "0.18.0", "0.23.0"):
        shape = engine_shape(version)
        assert shape is not None
        assert ("parallel_config", "tensor_parallel_size") in shape.fields["tensor_parallel_size"]
        assert ("model_config", "enforce_eager") in shape.fields["enforce_eager"]
        assert ("cache_config", "cache_dtype") in shape.fields["kv_cache_dtype"]
        assert shape.defaults["parallel_config"]["pipeline_parallel_size"] == 1
        assert shape.defaults["parallel_config"]["enable_expert_parallel"] is False
        assert {"kv_transfer_config", "speculative_config"} & shape.unset
        assert not {"model_config", "quant_config", "lora_config", "additional_config"} & shape.unset


def test_a_field_that_must_be_given_is_a_field() -> None:
    text = "@config\nclass TransferConfig:\n    connector: str\n    role: str | None = None\n    SIZE = 3\n"
    node = ast.parse(text).body[0]
    assert isinstance(node, ast.ClassDef)
    assert [*annotated_fields(node)] == ["connector", "role"]
