"""Overrides of a job, compared with the configuration that Hydra itself composes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_tree import MemoryTree
from omegaconf import OmegaConf

from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_format import as_github, as_json, as_text
from harness.compat.lint.lint_measurements import LintResult
from harness.compat.lint.lint_scripts import lint_file, lint_script
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import Location
from harness.sources.tree import REGULAR, TreeFile

MAIN = """\
import hydra
@hydra.main(config_path="config", config_name="{name}", version_base=None)
def main(config):
    print("composed")
if __name__ == "__main__":
    main()
"""
FILES = {
    "verl/trainer/main_ppo.py": MAIN.format(name="ppo_trainer"),
    "verl/trainer/sft_trainer.py": MAIN.format(name="sft_trainer"),
    "verl/experimental/off_policy/main.py": MAIN.format(name="off_policy_trainer"),
    "verl/trainer/no_hydra.py": "print(1)\n",
    "verl/trainer/data.py": "def files(config):\n    return config.data.train_batch_size, config.data.train_files\n",
    "verl/trainer/config/ppo_trainer.yaml": """\
defaults:
  - model_engine: dp
  - actor@actor_rollout_ref.actor: ${model_engine}_actor
  - algorithm@algorithm.correction: correction
  - _self_
actor_rollout_ref:
  rollout: {n: 1, calculate_log_probs: false, name: vllm, engine_kwargs: {vllm: {}}}
algorithm: {_target_: verl.trainer.config.AlgoConfig, adv_estimator: gae}
critic: {enable: null, strategy: fsdp, cliprange_value: 0.5}
data: {train_batch_size: 8, train_files: ~/train.parquet}
trainer: {nnodes: 1, n_gpus_per_node: 8, logger: [console], use_old_workers: null, save_freq: -1}
""",
    "verl/trainer/config/model_engine/dp.yaml": "# FSDP\n",
    "verl/trainer/config/model_engine/megatron.yaml": "# Megatron\n",
    "verl/trainer/config/actor/dp_actor.yaml": """\
_target_: verl.workers.config.ActorConfig
strategy: fsdp
use_dynamic_bsz: true
optim: {lr: 1e-6, override: {recompute_layers: null}}
clip_ratio: 0.2
warmup: 3
micro_batch: null
use_kl_loss: false
kl_loss_type: low_var_kl
""",
    "verl/trainer/config/actor/megatron_actor.yaml": """\
strategy: megatron
megatron: {tensor_model_parallel_size: 1}
""",
    "verl/trainer/config/algorithm/correction.yaml": "threshold: 2.0\nlimit: 3.0\n",
    "verl/trainer/config/sft_trainer.yaml": "optim: {lr: 1e-5}\ntrainer: {total_epochs: 4}\n",
    "verl/experimental/off_policy/config/off_policy_trainer.yaml": """\
hydra:
  searchpath: [file://verl/trainer/config]
defaults: [ppo_trainer, _self_]
staleness: 1
""",
    "recipe/queue/main.py": MAIN.format(name="queue_trainer"),
    "recipe/queue/config/queue_trainer.yaml": """\
hydra:
  searchpath:
    # relative to the folder in which verl is started
    - verl/trainer/config

defaults:
  - ppo_trainer
  - _self_
gen_batch_size: 4
""",
    "verl/trainer/ppo/core_algos.py": """\
class AdvantageEstimator(str, Enum):
    GAE = "gae"
    GRPO = "grpo"
@register_adv_est(AdvantageEstimator.GAE)
def gae(): pass
@register_adv_est(AdvantageEstimator.GRPO)
@register_adv_est("other")
def grpo(): pass
def kl_penalty_forward(logprob, kl_penalty):
    if kl_penalty in ("kl", "k1"):
        return 1
    if kl_penalty == "low_var_kl":
        return 2
    raise NotImplementedError
""",
    "verl/utils/profiler/profile.py": """\
class DistProfiler:
    def __init__(self, config):
        self._tool = config.tool
        if self._tool == "nsys":
            pass
        elif self._tool in ("npu", "torch"):
            pass
""",
    "verl/trainer/ppo/rollout_corr_helper.py": 'SUPPORTED_ROLLOUT_RS_OPTIONS: set[str] = {"token_k1", "seq_k2"}\n',
    "verl/trainer/config/algorithm.py": """\
class CorrectionConfig:
    threshold: str | float = 2.0
    limit: float = 3.0
class AlgoConfig:
    correction: Optional[CorrectionConfig] = None
""",
    "verl/workers/config/actor.py": """\
class Base:
    strategy: str = "fsdp"
class ActorConfig(Base):
    clip_ratio: float = 0.2
    warmup: int | str = 3
    micro_batch: Optional[int] = None
""",
}


@pytest.fixture(scope="module")
def configuration() -> Iterator[VerlConfiguration]:
    tree = MemoryTree(
        files={path: TreeFile(mode=REGULAR, data=text.encode()) for path, text in FILES.items()}
    )
    with VerlConfiguration(tree).unpacked() as unpacked:
        yield unpacked


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verl")
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def lint(
    configuration: VerlConfiguration | None, arguments: str, entry: str = "verl.trainer.main_ppo"
) -> LintResult:
    script = parse_script(f"python -m {entry} {arguments}", "run.sh")
    return lint_script(script, {"verl": "0.9.1"}, configuration)


def found(
    configuration: VerlConfiguration, arguments: str, entry: str = "verl.trainer.main_ppo"
) -> Mapping[str, str]:
    """The findings about the configuration: rule -> reason."""
    findings = lint(configuration, arguments, entry).findings
    return {one.rule: one.why for one in findings if one.rule.startswith("CONFIG-")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("actor_rollout_ref.rollout.n=8 trainer.nnodes=2 model_engine=dp", ""),
        ("+actor_rollout_ref.actor.new=1 ++trainer.more=2 ++trainer.nnodes=3 ~trainer.save_freq", ""),
        ("trainer.logger=[console,wandb] data.train_files=[$HOME/a.parquet,$HOME/b.parquet]", ""),
        ("trainer.nnodes=$NNODES data.train_files='${oc.env:X}/y' hydra.run.dir=x", ""),
        ("\"data.train_files=['$HOME/a.parquet' '$HOME/b.parquet']\"", "no viable alternative"),
        ("algorithm.filter.enable=True", "Could not override 'algorithm.filter.enable'"),
        ("trainer.nnodes.deeper=1", "trainer.nnodes"),
        ("~trainer.gone", "Could not delete from config. 'trainer.gone' does not exist"),
        ("+trainer.nnodes=2", "An item is already at 'trainer.nnodes'"),
        ("actor@x.y=z", "Could not override 'actor@x.y'"),
        ("model_engine=nothing", "Could not find 'model_engine/nothing'"),
        ("trainer.nnodes trainer.save_freq=2", "missing EQUAL"),
        ("trainer.logger=[console", "no viable alternative"),
        ("model_engine=megatron actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4", ""),
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4", "actor_rollout_ref.actor.megatron"),
        ("trainer.nnodes=two", "the default is 1"),
        ("actor_rollout_ref.rollout.calculate_log_probs=yes", "the default is False"),
        ("actor_rollout_ref.actor.optim.lr=fast", "the default is 1e-06"),
        ("actor_rollout_ref.actor.clip_ratio=[1]", "the default is 0.2"),
        ("actor_rollout_ref.actor.warmup=auto actor_rollout_ref.actor.strategy=fsdp2", ""),
        ("trainer.use_old_workers=disable trainer.nnodes='${trainer.n_gpus_per_node}'", ""),
        ("data.train_files='x/${trainer.gpus}'", "Interpolation key 'trainer.gpus' not found"),
        ("data.train_files='x/${hydra.job.name}/${oc.env:HOME}'", ""),
    ],
)
def test_what_hydra_refuses_is_an_error_with_its_message(
    configuration: VerlConfiguration, arguments: str, message: str
) -> None:
    reasons = found(configuration, arguments)
    assert bool(reasons) == bool(message), reasons
    assert message in " ".join(reasons.values())


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("python -m verl.trainer.main_ppo", ""),
        ("python -mverl.trainer.main_ppo", ""),
        ("python verl/trainer/main_ppo.py", ""),
        ("python /home/me/verl/verl/trainer/main_ppo.py", ""),
        ("python -m verl.trainer.main_ppo.py", "start it with -m verl.trainer.main_ppo"),
        ("python -m verl/trainer/main_ppo", "start it with -m verl.trainer.main_ppo"),
        ("python verl.trainer.main_ppo", "start it with -m verl.trainer.main_ppo"),
        ("python verl.trainer.main_ppo.py", "start it with -m verl.trainer.main_ppo"),
        ("python -m verl.trainer.ppo_main", "did you mean"),
    ],
)
def test_a_program_is_looked_for_as_python_looks_for_it(
    configuration: VerlConfiguration, command: str, problem: str
) -> None:
    script = parse_script(f"{command} actor_rollout_ref.rollout.n=8", "run.sh")
    result = lint_script(script, {"verl": "0.9.1"}, configuration)
    fixes = [one.fix for one in result.findings if one.rule == "NO-PROGRAM"]
    assert len(fixes) == bool(problem), fixes
    assert problem in " ".join(fixes)


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ("+data.train_batchsize=4", "write data.train_batch_size, without the plus"),
        ("+rollout.n=4", "write actor_rollout_ref.rollout.n"),
        # Also in a part that verl hands on to another package.
        ("+actor_rollout_ref.actor.optim.override.recompute_layer=1", "optim.override.recompute_layers"),
        ("+actor_rollout_ref.actor.optim.override.use_flash_attn=1", ""),
        ("+data.n=4", "write actor_rollout_ref.rollout.n"),
        ("+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=ascend", "engine vllm"),
        ("algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4", ""),
        ("algorithm.adv_estimator=grpo critic.cliprange_value=0.3", "remove critic.cliprange_value"),
        ("algorithm.adv_estimator=gae critic.cliprange_value=0.3", ""),
        # verl 0.6.1 chooses the classes of its workers with it, also without a critic.
        ("algorithm.adv_estimator=grpo critic.strategy=megatron", ""),
        ("+actor_rollout_ref.rollout.engine_kwargs.vllm.anything=1", ""),
        ("+actor_rollout_ref.model.override_config.anything=1", ""),
        # verl's code has this name.
        ("+algorithm.kl_penalty_forward=1", ""),
    ],
)
def test_a_setting_that_nothing_reads_is_told(
    configuration: VerlConfiguration, arguments: str, remedy: str
) -> None:
    fixes = [one.fix for one in lint(configuration, arguments).findings if one.rule == "UNREAD"]
    assert len(fixes) == bool(remedy), fixes
    assert remedy in " ".join(fixes)


def test_each_wrong_override_has_its_place_and_a_suggestion(configuration: VerlConfiguration) -> None:
    script = (
        "A=(\n  trainer.nodes=1\n  actor_rollout_ref.actor.lr=1\n)\npython -m verl.trainer.main_ppo ${A[@]}"
    )
    result = lint_script(parse_script(script, "run.sh"), {"verl": "0.9.1"}, configuration)
    first, second = (one for one in result.findings if one.rule == "CONFIG-KEY")
    assert (first.line, first.column) == (2, 3)
    assert (second.line, second.column) == (3, 3)
    assert "trainer.nnodes" in first.fix
    assert "actor_rollout_ref.actor.optim.lr" in second.fix


def test_each_program_has_its_own_configuration(configuration: VerlConfiguration) -> None:
    sft = "verl.trainer.sft_trainer"
    assert found(configuration, "optim.lr=1e-4", sft) == {}
    assert "CONFIG-KEY" in found(configuration, "actor_rollout_ref.rollout.n=1", sft)
    assert not [one for one in lint(configuration, "optim.lr=1", sft).findings if "CONFIG" not in one.rule]
    other = "verl.experimental.off_policy.main"
    assert found(configuration, "staleness=2 trainer.nnodes=2", other) == {}
    assert found(configuration, "trainer.nnodes=2", "${HOME}/verl/verl/trainer/main_ppo.py") == {}
    named = "--config-name=off_policy_trainer --config-path=${DIR}/verl/experimental/off_policy/config staleness=1"
    assert found(configuration, named) == {}


def test_rules_see_the_defaults_of_this_very_verl(configuration: VerlConfiguration) -> None:
    grouped = lint(configuration, "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=1")
    assert "GROUP-1" in {one.rule for one in grouped.findings}
    # `use_dynamic_bsz` is true by default in this configuration.
    assert "DYNBSZ" not in {one.rule for one in grouped.findings}


@pytest.mark.parametrize(
    ("script", "unchecked"),
    [
        ("python -m verl.trainer.main_ppo trainer.nnodes=1", ()),
        ('python -m verl.trainer.main_ppo trainer.nnodes=1 "$@" $EXTRA', ()),
        (
            "python -m recipe.dapo.main_dapo trainer.nnodes=1",
            ("overrides were not compared with the configuration of recipe.dapo.main_dapo in verl 0.9.1",),
        ),
        (
            "python -m verl.trainer.no_hydra trainer.nnodes=1",
            ("overrides were not compared with the configuration of verl.trainer.no_hydra in verl 0.9.1",),
        ),
        (
            'mapfile ARGS < overrides\npython -m verl.trainer.main_ppo "${ARGS[@]}" trainer.nnodes=1',
            ("line 2: the overrides in ${ARGS[@]} are not read",),
        ),
        (
            "python -m verl.trainer.main_ppo $(cat overrides.txt)",
            ("line 1: the overrides in $(cat overrides.txt) are not read",),
        ),
    ],
)
def test_what_was_not_compared_is_told_in_every_format(
    configuration: VerlConfiguration, script: str, unchecked: tuple[str, ...]
) -> None:
    result = lint_script(parse_script(script), {"verl": "0.9.1"}, configuration)
    assert result.unchecked == unchecked
    assert ("incomplete" in as_text(result)) == bool(unchecked)
    assert json.loads(as_json(result))["unchecked"] == list(unchecked)
    assert as_github(result).count("was not checked") == len(unchecked)


def test_without_a_verl_nothing_is_compared() -> None:
    assert lint(None, "trainer.nnodes=1").unchecked == (
        "overrides were not compared with the configuration of verl.trainer.main_ppo in verl 0.9.1",
    )


def test_a_rule_about_a_setting_that_is_not_set_is_open_where_overrides_were_not_read(
    configuration: VerlConfiguration,
) -> None:
    result = lint(configuration, "$(cat overrides.txt)")
    assert "GROUP-1" in {item.rule for item in result.undecided}


keys = st.sampled_from(
    [
        "trainer.nnodes",
        "trainer.nope",
        "model_engine",
        "actor_rollout_ref.actor.optim.lr",
        "actor_rollout_ref.actor",
        "actor@actor_rollout_ref.actor",
        "trainer",
        "data.train_files",
        "x",
    ]
)
values = st.sampled_from(
    ["=1", "=", "=[a,b]", "={a:1}", "=megatron_actor", "=megatron", "='q w'", "=null", "", "=[", "=a,b"]
)


@settings(max_examples=12, deadline=None)
@given(overrides=st.lists(st.tuples(st.sampled_from(["", "", "+", "++", "~"]), keys, values), max_size=3))
def test_hydra_takes_what_lint_takes(
    configuration: VerlConfiguration, checkout: Path, overrides: list[tuple[str, str, str]]
) -> None:
    words = ["".join(parts) for parts in overrides]
    program = configuration.program("verl.trainer.main_ppo", {})
    assert program is not None
    arguments = [ScriptValue(text=word, where=Location("x")) for word in words]
    composition = configuration.compose(program, arguments)
    real = subprocess.run(
        [sys.executable, "verl/trainer/main_ppo.py", *words, "hydra.run.dir=."],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("composed" in real.stdout) == (not composition.refused and not composition.problem), real.stderr


def test_each_file_is_parsed_once_and_no_composition_changes_another(
    configuration: VerlConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = configuration.program("verl.trainer.main_ppo", {})
    assert program is not None
    first = configuration.compose(program, ())
    words = [ScriptValue(text="+trainer.added=1", where=Location("x"))]
    assert configuration.compose(program, words).value("trainer.added") == 1
    monkeypatch.setattr(OmegaConf, "load", lambda *_: pytest.fail("a file is parsed again"))
    assert configuration.compose(program, ()) == first


def test_a_field_of_a_class_within_a_class_can_take_text(configuration: VerlConfiguration) -> None:
    assert found(configuration, "algorithm.correction.threshold=0.5_4.0") == {}
    assert set(found(configuration, "algorithm.correction.limit=0.5_4.0")) == {"CONFIG-TYPE"}


@pytest.mark.parametrize(
    ("override", "remedy"),
    [
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", "add model_engine=megatron"),
        ("+trainer.nnodes=2", "remove the `+`"),
        ("data.train_files=<path>", "quote the value for Hydra: 'data.train_files=\"<path>\"'"),
        (
            "actor_rollout_ref.rollout.engine_kwargs.vllm.seed=1",
            "add the key: +actor_rollout_ref.rollout.engine",
        ),
        ("trainer.n_gpu_per_node=8", "did you mean trainer.n_gpus_per_node?"),
        ("actor_rollout_ref.actor.colour=red", "correct or remove the override"),
    ],
)
def test_the_remedy_for_a_refused_override_was_tried(
    configuration: VerlConfiguration, override: str, remedy: str
) -> None:
    [finding] = [one for one in lint(configuration, f"'{override}'").findings if one.rule == "CONFIG-KEY"]
    assert finding.fix.startswith(remedy)


def test_keys_of_a_configuration_of_another_package_are_not_decided(configuration: VerlConfiguration) -> None:
    overrides = "hydra.searchpath=[pkg://other.config] actor_rollout_ref.actor.engine.tp=1"
    result = lint(configuration, overrides)
    assert not [one for one in result.findings if one.rule == "CONFIG-KEY"]
    assert "actor_rollout_ref.actor.engine.tp" in " ".join(result.unchecked)


@pytest.mark.parametrize("entry", ["verl.trainer.main_generation_server", "verl.model_merger"])
def test_rules_of_training_are_not_about_other_programs(entry: str) -> None:
    overrides = "actor_rollout_ref.rollout.n=1 algorithm.adv_estimator=grpo"
    assert "GROUP-1" in {one.rule for one in lint(None, overrides).findings}
    assert "GROUP-1" not in {one.rule for one in lint(None, overrides, entry).findings}


def test_equal_findings_of_two_branches_are_reported_once(configuration: VerlConfiguration) -> None:
    text = """
if [ "$1" = long ]; then length=1; else length=2; fi
python -m verl.trainer.main_ppo trainer.nnode=1 data.train_batch_size=$length
"""
    result = lint_script(parse_script(text, "run.sh"), {"verl": "0.9.1"}, configuration)
    assert len([one for one in result.findings if one.rule == "CONFIG-KEY"]) == 1


def test_a_module_that_verl_does_not_have_is_an_error(configuration: VerlConfiguration) -> None:
    findings = lint(configuration, "trainer.nnodes=2", "verl.trainer.main_ppo_sync").findings
    assert [one.why for one in findings if one.severity == "error"] == [
        "python -m stops with: No module named verl.trainer.main_ppo_sync"
    ]
    assert findings[0].fix == "did you mean verl.trainer.main_ppo?"
    unchecked = lint(configuration, "trainer.nnodes=2", "recipe.dapo.main_dapo").unchecked
    assert "recipe.dapo.main_dapo" in " ".join(unchecked)


def test_a_recipe_that_may_be_copied_into_the_package_is_told_with_its_place(
    configuration: VerlConfiguration,
) -> None:
    tree = MemoryTree(
        files={
            path: TreeFile(mode=REGULAR, data=text.encode())
            for path, text in {**FILES, "recipe/dapo/main_dapo.py": MAIN.format(name="dapo")}.items()
        }
    )
    with VerlConfiguration(tree).unpacked() as changed:
        result = lint(changed, "trainer.nnodes=2", "verl.trainer.main_dapo")
    [finding] = [one for one in result.findings if one.rule == "NO-PROGRAM"]
    assert finding.severity == "warning"
    assert finding.fix.startswith("start it with -m recipe.dapo.main_dapo, or copy its folder")
    assert "verl.trainer.main_dapo" in " ".join(result.unchecked)
    [plain] = lint(configuration, "trainer.nnodes=2", "verl.trainer.main_dapo").findings
    assert (plain.rule, plain.severity) == ("NO-PROGRAM", "error")


def test_a_file_beside_the_script_is_found_by_its_name(configuration: VerlConfiguration) -> None:
    script = parse_script("python3 main_ppo.py actor_rollout_ref.rollout.m=2", "run.sh")
    result = lint_script(script, {"verl": "0.9.1"}, configuration)
    assert "CONFIG-KEY" in {one.rule for one in result.findings}


@pytest.mark.parametrize(
    ("name", "fix"), [("grop", "set algorithm.adv_estimator=grpo"), ("xyz", "choose one of")]
)
def test_a_name_that_this_verl_does_not_register_is_an_error(
    configuration: VerlConfiguration, name: str, fix: str
) -> None:
    [finding] = [
        one
        for one in lint(configuration, f"algorithm.adv_estimator={name}").findings
        if one.rule == "REGISTRY"
    ]
    assert finding.fix.startswith(fix)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            "+algorithm.rollout_correction.rollout_rs=\\'token_k1,seq_k4\\'",
            "error algorithm.rollout_correction.rollout_rs=seq_k4",
        ),
        (
            "+global_profiler.tool=ascend +actor_rollout_ref.actor.profiler.enable=True",
            "warning global_profiler.tool=ascend",
        ),
        ("+algorithm.rollout_correction.rollout_rs=\\'token_k1,seq_k2\\'", ""),
        ("+global_profiler.tool=npu +actor_rollout_ref.actor.profiler.enable=True", ""),
        # Nothing reads the tool of a profiler that is off.
        ("+global_profiler.tool=ascend", ""),
    ],
)
def test_each_name_of_a_list_and_names_that_a_method_compares_are_those_of_this_verl(
    configuration: VerlConfiguration, settings: str, said: str
) -> None:
    told = [f"{one.severity} {one.message}" for one in lint(configuration, settings).findings]
    severity, _, name = said.partition(" ")
    found = [one for one in told if "is no name that this verl has" in one]
    assert len(found) == bool(said)
    assert not found or (found[0].startswith(severity) and f"{name} is no name" in found[0])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("vllm.max_loar_rank=64", "max_loar_rank looks like a misspelling of max_lora_rank"),
        ("vllm.compilation_config.cudagraph_mode=FULL_DECODE", "FULL_DECODE is no cudagraph_mode"),
        ("vllm.compilation_config.cudagraph_mod=FULL", "misspelling of cudagraph_mode"),
        ("vllm.max_lora_rank=64", ""),
        ("vllm.max-lora-rank=64", ""),
        ("vllm.compilation_config.cudagraph_mode=full_decode_only", ""),
        ("vllm.compilation_config.cudagraph_mode=$MODE", ""),
        ("vllm.additional_config.enable_cpu_bindin=True", "misspelling of enable_cpu_binding"),
        ("vllm.additional_config.enable_cpu_binding=True", ""),
        # Names of other releases are like none that is known.
        ("vllm.something_else=1", ""),
    ],
)
def test_a_misspelt_option_of_the_engine_is_an_error(
    configuration: VerlConfiguration, option: str, said: str
) -> None:
    result = lint(configuration, f"+actor_rollout_ref.rollout.engine_kwargs.{option}")
    told = [one.message for one in result.findings if one.rule == "ENGINE-OPTION"]
    assert len(told) == bool(said)
    assert all(said in one for one in told)


@pytest.mark.parametrize(
    ("release", "is_told"), [("0.13.0", True), ("0.11.0", False), ("0.13.0@0123456", False), ("", False)]
)
def test_an_option_that_another_release_of_vllm_ascend_reads_is_told(
    configuration: VerlConfiguration, release: str, is_told: bool
) -> None:
    option = "engine_kwargs.vllm.additional_config.ascend_scheduler_config.enabled=True"
    script = parse_script(f"python -m verl.trainer.main_ppo +actor_rollout_ref.rollout.{option}", "run.sh")
    result = lint_script(script, {"verl": "0.9.1", "vllm_ascend": release}, configuration)
    told = [one.message for one in result.findings if one.rule == "ENGINE-OPTION"]
    assert told == ([f"vllm-ascend {release} has no option ascend_scheduler_config"] if is_told else [])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("override_transformer_config.recompute_granuality=full", "misspelling of recompute_granularity"),
        ("override_transformer_config.recompute_granularity=all", "all is no recompute_granularity"),
        ("override_ddp_config.grad_reduce_in_fp23=True", "misspelling of grad_reduce_in_fp32"),
        ("override_optimizer_config.optimizer_cpu_ofload=True", "misspelling of optimizer_cpu_offload"),
        ("override_transformer_config.recompute_granularity=full", ""),
        ("override_transformer_config.recompute_granularity=null", ""),
        # MindSpeed has options of its own.
        ("override_transformer_config.use_flash_attn=True", ""),
        (
            "override_transformer_config.moe_permutation_async_com=True",
            "misspelling of moe_permutation_async_comm",
        ),
        ("mcore_kwargs.recompute_granuality=full", "misspelling of recompute_granularity"),
        ("mcore_kwargs.moe_permutation_async_comm=True", ""),
        ("mcore_kwargs.context_parallel_algo=ulysses", "ulysses is no context_parallel_algo that MindSpeed"),
        ("override_transformer_config.moe_zero_memory=level2", "level2 is no moe_zero_memory that MindSpeed"),
        ("override_transformer_config.context_parallel_algo=ulysses_cp_algo", ""),
        ("mcore_kwargs.recompute_granularity=all", "all is no recompute_granularity that megatron"),
        ("other_config.recompute_granuality=full", ""),
    ],
)
def test_a_misspelt_option_of_megatron_is_an_error(
    configuration: VerlConfiguration, option: str, said: str
) -> None:
    result = lint(configuration, f"+actor_rollout_ref.actor.megatron.{option}")
    told = [one.message for one in result.findings if one.rule == "ENGINE-OPTION"]
    assert len(told) == bool(said)
    assert all(said in one for one in told)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("configs", "verl has no folder verl/trainer/configs"),
        ("config", ""),
        # Folders of the user's host, and those that another folder than verl's package has.
        ("/data/configs", ""),
        ("$PWD/configs", ""),
        ("../../../configs", ""),
    ],
)
def test_a_relative_folder_of_configurations_is_one_of_this_verl(
    configuration: VerlConfiguration, path: str, said: str
) -> None:
    result = lint(configuration, f"--config-path={path} trainer.nnodes=2")
    told = [one for one in result.findings if one.rule == "NO-PROGRAM"]
    assert len(told) == bool(said)
    assert all(one.message == said and one.fix == "did you mean --config-path=config?" for one in told)


def test_a_failed_check_of_a_missing_setting_is_told_beside_the_settings_of_its_section() -> None:
    program = """\
import hydra
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    settings = config.data.reward.overlong
    assert settings.get("longest") is not None, f"longest must be given if length={settings.length}"
"""
    ppo = FILES["verl/trainer/config/ppo_trainer.yaml"].replace(
        "data: {", "data: {reward: {overlong: {length: null, longest: null}}, "
    )
    files = {**FILES, "verl/trainer/main_ppo.py": program, "verl/trainer/config/ppo_trainer.yaml": ppo}
    tree = MemoryTree(
        files={path: TreeFile(mode=REGULAR, data=text.encode()) for path, text in files.items()}
    )
    with VerlConfiguration(tree).unpacked() as changed:
        text = "python -m verl.trainer.main_ppo trainer.nnodes=2 \\\n  +data.reward.overlong.other=1\n"
        result = lint_script(parse_script(text, "run.sh"), {"verl": "0.9.1"}, changed)
    [finding] = [one for one in result.findings if one.rule == "VERL-CHECK"]
    assert finding.line == 2
    assert finding.fix == "change the value of data.reward.overlong.longest"


def test_the_processes_of_torchrun_are_those_that_the_sizes_divide() -> None:
    program = """\
import hydra
from torch.distributed.device_mesh import init_device_mesh
@hydra.main(config_path="config", config_name="sft_trainer", version_base=None)
def main(config):
    init_device_mesh("npu", mesh_shape=(config.engine.replicas, 4), mesh_dim_names=("dp", "tp"))
"""
    sft = "engine: {replicas: 1}\ntrainer: {total_epochs: 4}\n"
    files = {**FILES, "verl/trainer/sft_trainer.py": program, "verl/trainer/config/sft_trainer.yaml": sft}
    tree = MemoryTree(
        files={path: TreeFile(mode=REGULAR, data=text.encode()) for path, text in files.items()}
    )
    with VerlConfiguration(tree).unpacked() as changed:
        for start, count in (
            ("torchrun --nnodes=1 --nproc_per_node=6", 1),
            ("torchrun --nproc-per-node 4", 0),
            ("torchrun --nproc-per-node $N", 0),
            ("python3", 0),
        ):
            text = f"{start} -m verl.trainer.sft_trainer engine.replicas=1\n"
            result = lint_script(parse_script(text, "run.sh"), {"verl": "0.9.1"}, changed)
            assert len([one for one in result.findings if one.rule == "VERL-CHECK"]) == count, start


@pytest.mark.parametrize("name", ["grpo", "gae", "other", "$NAME"])
def test_a_registered_or_unknown_name_is_no_error(configuration: VerlConfiguration, name: str) -> None:
    findings = lint(configuration, f"algorithm.adv_estimator={name}").findings
    assert "REGISTRY" not in {one.rule for one in findings}


def test_a_deleted_key_that_the_program_reads_is_told_at_its_override() -> None:
    program = """\
import hydra
@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    if config.trainer.save_freq > 0:
        pass
"""
    files = {**FILES, "verl/trainer/main_ppo.py": program}
    tree = MemoryTree(
        files={path: TreeFile(mode=REGULAR, data=text.encode()) for path, text in files.items()}
    )
    with VerlConfiguration(tree).unpacked() as changed:
        script = parse_script(
            "python -m verl.trainer.main_ppo \\\n  trainer.nnodes=2 \\\n  ~trainer.save_freq\n"
        )
        found = lint_script(script, {"verl": "0.9.1"}, changed).findings
    assert [one.line for one in found if one.rule == "VERL-CHECK"] == [3]


@pytest.mark.parametrize(
    ("override", "rules"),
    [
        ("use_kl_loss=true actor_rollout_ref.actor.kl_loss_type=low_var", {"REGISTRY"}),
        ("use_kl_loss=true actor_rollout_ref.actor.kl_loss_type=k1+", set()),
        ("kl_loss_type=low_var", set()),
        ("micro_batch=auto", {"CONFIG-TYPE"}),
        ("micro_batch=None", {"CONFIG-TYPE"}),
        ("micro_batch=null", set()),
        ("micro_batch=4", set()),
        ("micro_batch=0.5", {"CONFIG-TYPE"}),
        ("clip_ratio=0.5", set()),
        ("warmup=0.5", set()),
    ],
)
def test_names_that_a_function_compares_and_types_of_settings_without_default(
    configuration: VerlConfiguration, override: str, rules: set[str]
) -> None:
    findings = lint(configuration, f"actor_rollout_ref.actor.{override}").findings
    assert {one.rule for one in findings if one.rule in ("REGISTRY", "CONFIG-TYPE")} == rules


def test_a_folder_without_a_scheme_is_searched_where_verl_is_started(
    configuration: VerlConfiguration,
) -> None:
    arguments = "trainer.nnodes=2 gen_batch_size=8"
    assert found(configuration, arguments, "recipe.queue.main") == {}
    assert "CONFIG-KEY" in found(configuration, f"{arguments} trainer.nodes=1", "recipe.queue.main")


def test_a_choice_that_does_not_exist_is_found_behind_many_overrides(
    configuration: VerlConfiguration,
) -> None:
    many = " ".join(f"+data.k{number}=1" for number in range(90))
    keys = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"
    for choice in ("model_engine=megatronn", "actor@actor_rollout_ref.actor=vp_actor"):
        findings = lint(configuration, f"{many} {keys} {choice}").findings
        # Keys that another choice would have are refused because of this one.
        [message] = [one.message for one in findings if one.rule.startswith("CONFIG-")]
        assert choice in message


def test_an_override_that_no_message_names_is_found(configuration: VerlConfiguration) -> None:
    many = " ".join(f"+data.k{number}=1" for number in range(70))
    findings = lint(
        configuration, f"{many} data.train_files={{a:{{b:1}}}} ~data.k3=2 trainer.nnodes=3"
    ).findings
    assert [one.message for one in findings if one.rule.startswith("CONFIG-KEY")] != []


def test_a_choice_that_another_package_may_have_is_not_judged(configuration: VerlConfiguration) -> None:
    keys = "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2"
    result = lint(
        configuration, f"hydra.searchpath=[pkg://other.config] actor@actor_rollout_ref.actor=own_actor {keys}"
    )
    assert not [one for one in result.findings if one.rule.startswith("CONFIG-")]
    assert any(one.rule == "CONFIG-KEY" for one in result.undecided)


def own_verl() -> MemoryTree:
    return MemoryTree(
        files={path: TreeFile(data=text.encode(), mode=REGULAR) for path, text in FILES.items()}
    )


def test_a_configuration_beside_the_script_is_found_by_the_end_of_its_path(tmp_path):
    own = tmp_path / "project" / "scripts" / "config"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(
        "hydra:\n  searchpath:\n    - file://submodules/verl/trainer/config\n"
        "defaults:\n  - ppo_trainer\n  - _self_\nmine: 1\n"
    )
    script = own.parent / "run.sh"
    script.write_text(
        "CONFIG=/home/me/project/scripts/config\n"
        "python3 -m verl.trainer.main_ppo --config-path=$CONFIG --config-name=mine mine=2 trainer.nnode=1\n"
    )
    result = lint_file(script, {"verl": "0.9.0"}, own_verl())
    refused = [one.message for one in result.findings if one.rule == "CONFIG-KEY"]
    assert [message.partition("`")[2].partition("`")[0] for message in refused] == ["trainer.nnode=1"]
    assert not result.unchecked


def test_a_configuration_that_searches_files_of_others_is_not_known(tmp_path):
    own = tmp_path / "config"
    own.mkdir()
    (own / "mine.yaml").write_text(
        "hydra:\n  searchpath:\n    - pkg://other.trainer.config\ndefaults:\n  - theirs\n  - _self_\n"
    )
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo --config-path=$PWD/config --config-name=mine mine=2\n"
    )
    result = lint_file(script, {"verl": "0.9.0"}, own_verl())
    assert not [one for one in result.findings if one.severity == "error"]
    assert "other/trainer/config" in result.unchecked[0]


@pytest.mark.parametrize(
    ("words", "rules"),
    [
        (
            "--config-name=ppo_trianer trainer.nnodes=1",
            {"NO-PROGRAM": "did you mean --config-name=ppo_trainer or sft_trainer?"},
        ),
        (
            "--config-path=$DIR/verl/trainer/config --config-name=ppo_trianer trainer.nnodes=1",
            {"NO-PROGRAM": "did you mean --config-name=ppo_trainer or sft_trainer?"},
        ),
        ("--config-path=$DIR/mine --config-name=ppo_trianer trainer.nnodes=1", {}),
        ("--config-name=$NAME trainer.nnodes=1", {}),
        ("--config-name=other --config-path=/elsewhere trainer.nnodes=1", {}),
        ("data.train_batch_size=1e3", {"CONFIG-TYPE": "give a number, for example data.train_batch_size=1"}),
        ("data.train_batch_size=16 trainer.nnodes=1", {}),
    ],
)
def test_a_configuration_that_does_not_exist_and_a_count_that_is_no_whole_number(
    configuration: VerlConfiguration, words: str, rules: Mapping[str, str]
):
    script = parse_script(f"python3 -m verl.trainer.main_ppo {words}\n")
    found = lint_script(script, {"verl": "0.9.0"}, configuration).findings
    assert {one.rule: one.fix for one in found if one.severity == "error"} == rules
