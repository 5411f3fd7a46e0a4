"""A source that cannot be read leaves no rule out in silence: each rule that then finds less says so."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from memory_tree import MemoryTree
from test_server_commands import FILES as VLLM

from harness.compat.lint import engine_options, engine_shape, engine_variables
from harness.compat.lint.lint_measurements import LintResult
from harness.compat.lint.lint_scripts import lint_file
from harness.compat.lint.serving.server_findings import ServerSources
from harness.sources.tree import Tree, TreeFile

ROLLOUT = "actor_rollout_ref.rollout"
KWARGS = f"+{ROLLOUT}.engine_kwargs.vllm"
MAIN = """\
import hydra
from verl.options import check
from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    check(config)
    rollout = config.actor_rollout_ref.rollout
    vllm = {key: one for key, one in rollout.engine_kwargs.vllm.items() if one is not None}
    build_cli_args_from_config({"tensor_parallel_size": rollout.tensor_model_parallel_size, **vllm})
"""
OPTIONS = """\
def check(config):
    if config.trainer.steps % config.data.train_batch_size:
        raise ValueError("steps")
    if config.trainer.mode == "fast" or config.trainer.mode == "slow":
        pass
    if config.data.order not in ("up", "down"):
        raise ValueError("order")
    if config.trainer.inner.enable:
        print(config.trainer.inner.size)
"""
CONFIG = """\
algorithm: {adv_estimator: gae}
data: {train_batch_size: 8, order: up, train_files: null, use: true}
trainer: {steps: 8, mode: fast, script: null, inner: {enable: false, size: 1}, n_gpus_per_node: 8, nnodes: 1}
actor_rollout_ref:
  model: {external_lib: null, path: null}
  rollout: {name: vllm, tensor_model_parallel_size: 2, engine_kwargs: {vllm: {}, sglang: {}}}
"""
ALGORITHMS = """\
@register_adv_est("gae")
def gae(): pass
@register_adv_est("grpo")
def grpo(): pass
"""
VERL = {
    "verl/trainer/main_ppo.py": MAIN,
    "verl/options.py": OPTIONS,
    "verl/trainer/config/ppo_trainer.yaml": CONFIG,
    "verl/trainer/ppo/core_algos.py": ALGORITHMS,
    "verl/workers/rollout/vllm_rollout/utils.py": "def build_cli_args_from_config(config): pass\n",
    "verl/utils/reward.py": "",
}
ASCEND = {
    "vllm_ascend/platform.py": """\
from vllm_ascend.checks import check
class NPUPlatform:
    @classmethod
    def check_and_update_config(cls, vllm_config):
        check(vllm_config)
""",
    "vllm_ascend/checks.py": """\
def check(vllm_config):
    if (vllm_config.additional_config or {}).get("graph"):
        raise ValueError("no graph")
""",
}
CHECKS = """
def validate_parsed_serve_args(args):
    if args.enforce_eager and not args.tool_parser:
        raise TypeError("--enforce-eager requires --tool-parser")
"""
ARGUMENTS = VLLM["vllm/engine/arg_utils.py"].replace('"--extra"', '"--additional-config"')
SERVER = VLLM | {
    "vllm/engine/arg_utils.py": ARGUMENTS,
    "vllm/entrypoints/openai/cli_args.py": VLLM["vllm/entrypoints/openai/cli_args.py"] + CHECKS,
}
VERSIONS = {
    "verl": "0.9.1",
    "vllm_ascend": "0.18.0",
    "vllm": "0.18.0",
    "torch_npu": "2.7.1",
    "ray": "2.50.0",
}
#: A mistake of every rule that rests on a source. The first program is none of verl.
SCRIPT = f"""\
export VLLM_ATTENTION_BACKEND=FLASH VLLM_ASCEND_ENABLE_FLASHCOMM=1 INDUCTOR_ASCEND_LOG_LEVEL=1
export PYTORCH_NPU_ALLOC_CONF=segment_size_mb:64
python -m verl.trainer.main_pro data.train_batch_size=8
python -m verl.trainer.main_ppo data.train_batch_sise=8
python -m verl.trainer.main_ppo data.train_batch_size=3
python -m verl.trainer.main_ppo data.order=around
python -m verl.trainer.main_ppo data.use=Ture
python -m verl.trainer.main_ppo algorithm.adv_estimator=grop
python -m verl.trainer.main_ppo trainer.mode=fsat
python -m verl.trainer.main_ppo trainer.mode=always
python -m verl.trainer.main_ppo trainer.script=verl/utils/rewards.py
python -m verl.trainer.main_ppo trainer.inner.size=2
python -m verl.trainer.main_ppo +data.train_files_lst=x
python -m verl.trainer.main_ppo {KWARGS}.max_loar_rank=64
python -m verl.trainer.main_ppo {KWARGS}.enable_reasoning=True
python -m verl.trainer.main_ppo {KWARGS}.additional_config.graph=True
vllm serve m --max-model-length 1
vllm serve m --dtype bf16
vllm serve m --port x
vllm serve m -cc '{{"mod": 1}}'
vllm serve m --enforce-eager
vllm serve m --additional-config '{{"graph": true}}'
"""
ON_SOURCES = {
    "CONFIG-KEY", "CONFIG-TYPE", "NO-PROGRAM", "NO-FILE", "REGISTRY", "VALUE-TYPO", "VALUE-UNKNOWN", "UNREAD",
    "ENGINE-OPTION", "ENGINE-CHECK", "VERL-CHECK", "ENV-NAME", "ENV-VALUE", "SERVE-OPTION",
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """The sources of a job and a server; None for a tree that is not to be had."""

    verl: dict[str, str] | None = field(default_factory=lambda: VERL)
    ascend: dict[str, str] | None = field(default_factory=lambda: ASCEND)
    vllm: dict[str, str] | None = field(default_factory=lambda: SERVER)
    versions: dict[str, str] = field(default_factory=lambda: VERSIONS)

    def lint(self, folder: Path) -> LintResult:
        script = folder / "run.sh"
        script.write_text(SCRIPT)
        servers = ServerSources(
            fetch_vllm=lambda: _tree(self.vllm),
            fetch_ascend=lambda: _tree(self.ascend),
            cache=folder / "cache",
        )
        verl, engine = _tree(self.verl), _tree(self.ascend)
        return lint_file(script, self.versions, verl, folder / "cache", engine, servers)


def _tree(files: dict[str, str] | None) -> Tree | None:
    if files is None:
        return None
    return MemoryTree(files={path: TreeFile(data=text.encode()) for path, text in files.items()})


def found(result: LintResult) -> set[tuple[str, int]]:
    return {(one.rule, one.line) for one in result.findings if one.rule in ON_SOURCES}


def broken(files: dict[str, str], path: str) -> dict[str, str]:
    return {**files, path: f"{files[path]}\ndef broken(:\n"}


WORLDS = {
    "verl is not given": World(verl=None, versions={**VERSIONS, "verl": ""}),
    "the source of verl": World(verl=None),
    "vllm-ascend is not given": World(ascend=None, versions={**VERSIONS, "vllm_ascend": ""}),
    "the source of vllm-ascend": World(ascend=None),
    "the source of vllm": World(vllm=None),
    "no version": World(verl=None, ascend=None, vllm=None, versions={}),
    "commits": World(versions={**VERSIONS, "vllm": "0.18.0@abc", "vllm_ascend": "0.18.0@abc"}),
    **{
        f"{name} is not given": World(versions={**VERSIONS, name: ""})
        for name in ("vllm", "torch_npu", "ray")
    },
    **{f"{path} is broken": World(verl=broken(VERL, path)) for path in VERL if path.endswith(".py")},
    **{f"{path} is broken": World(ascend=broken(ASCEND, path)) for path in ASCEND},
    **{f"{path} is broken": World(vllm=broken(SERVER, path)) for path in SERVER},
    "no platform": World(ascend={"vllm_ascend/other.py": ""}),
    "another platform": World(ascend={**ASCEND, "vllm_ascend/platform.py": "class NPUPlatform: pass\n"}),
    "no server": World(vllm={**SERVER, "vllm/entrypoints/cli/serve.py": "class Other: pass\n"}),
    "no file of the server": World(vllm={"vllm/other.py": ""}),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> LintResult:
    return World().lint(tmp_path_factory.mktemp("whole"))


def test_with_all_sources_every_rule_finds_its_mistake(whole: LintResult) -> None:
    assert {rule for rule, _ in found(whole)} == ON_SOURCES
    assert not {one.rule for one in whole.undecided} & ON_SOURCES
    assert not [note for note in whole.notes if note.unread]


@pytest.mark.parametrize("lost", WORLDS)
def test_a_rule_that_finds_less_without_a_source_is_told_as_undecided(
    whole: LintResult, tmp_path: Path, lost: str
) -> None:
    result = WORLDS[lost].lint(tmp_path)
    assert {rule for rule, _ in found(whole) - found(result)} <= {one.rule for one in result.undecided}


def test_what_was_read_before_is_told_in_the_same_way(tmp_path: Path) -> None:
    world = World(verl=broken(VERL, "verl/options.py"), vllm=broken(SERVER, "vllm/config/all.py"))
    assert world.lint(tmp_path).undecided == world.lint(tmp_path).undecided


def test_without_the_surface_pack_the_rules_on_releases_are_undecided(
    whole: LintResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nothing:
        pack, shipped_digest = None, ""

    for module in (engine_options, engine_shape, engine_variables):
        monkeypatch.setattr(module, "shipped_pack", Nothing)
    cached = (engine_shape.engine_shape, engine_variables._unread, engine_variables._elsewhere)
    for one in cached:
        one.cache_clear()
    try:
        result = World().lint(tmp_path)
    finally:
        for one in cached:
            one.cache_clear()
    undecided = {one.rule for one in result.undecided}
    assert {rule for rule, _ in found(whole) - found(result)} <= undecided
    assert {"ENV-NAME", "ENGINE-CHECK", "ENGINE-OPTION"} <= undecided


def test_the_line_about_servers_says_what_is_not_known(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve m --additional-config '{\"graph\": true}'\n")

    def lint(world: World) -> LintResult:
        servers = ServerSources(
            fetch_vllm=lambda: _tree(world.vllm), fetch_ascend=lambda: _tree(world.ascend)
        )
        return lint_file(script, world.versions, servers=servers)

    assert [one.rule for one in lint(World()).findings] == ["ENGINE-CHECK"]
    result = lint(replace(World(), ascend=None))
    assert not result.notes
    assert not result.findings
    assert [(one.rule, one.unknown) for one in result.undecided] == [
        (rule, ("the source of vllm-ascend 0.18.0",)) for rule in ("ENGINE-OPTION", "ENGINE-CHECK")
    ]
    [note] = lint(World(vllm={"vllm/other.py": ""})).notes
    assert "not where they are looked for" in note.text
    assert note.unread
