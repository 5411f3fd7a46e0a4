"""Sections of the configuration: replaced by a value, switched off, and files that a setting names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from memory_tree import MemoryTree

from harness.compat.lint.hydra_compose import VerlConfiguration
from harness.compat.lint.launch_script import parse_script
from harness.compat.lint.lint_measurements import LintResult
from harness.compat.lint.lint_scripts import lint_script
from harness.sources.tree import REGULAR, TreeFile

FILES = {
    "verl/trainer/main_ppo.py": """\
import hydra

def make_tools(multi_turn):
    return multi_turn.tool_config_path

def shorten(name):
    return name.upper()

@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    shorten(config.actor_rollout_ref.rollout.name)
    if config.actor_rollout_ref.rollout.multi_turn.enable:
        make_tools(config.actor_rollout_ref.rollout.multi_turn)
    if config.reward.buffer.enable:
        print(config.reward.buffer.len)
    config.trainer.mode.lower()
    return config.actor_rollout_ref.rollout.multi_turn.format
""",
    "verl/trainer/config/ppo_trainer.yaml": """\
actor_rollout_ref:
  rollout:
    n: 1
    name: vllm
    engine_kwargs: {vllm: {}}
    multi_turn: {enable: false, tool_config_path: null, format: hermes}
reward: {reward_manager: {name: naive}, buffer: {enable: false, len: 0, of: other}, score: null}
trainer: {mode: fast}
""",
    "verl/utils/reward_score/gsm8k.py": "def compute_score(): ...\n",
    "verl/utils/reward_score/math.py": "def compute_score(): ...\n",
}
ROLLOUT = "actor_rollout_ref.rollout."


@pytest.fixture(scope="module")
def configuration() -> Iterator[VerlConfiguration]:
    files = {path: TreeFile(mode=REGULAR, data=text.encode()) for path, text in FILES.items()}
    with VerlConfiguration(MemoryTree(files=files)).unpacked() as unpacked:
        yield unpacked


def lint(configuration: VerlConfiguration, arguments: str, vllm_ascend: str = "") -> LintResult:
    script = parse_script(f"python -m verl.trainer.main_ppo {arguments}", "run.sh")
    return lint_script(script, {"verl": "0.9.1", "vllm_ascend": vllm_ascend}, configuration)


@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ("reward.reward_manager=dapo", "write reward.reward_manager.name=dapo"),
        (f"{ROLLOUT}multi_turn=True", f"write {ROLLOUT}multi_turn.enable=True"),
        ("reward.buffer=4", "set a key of the section"),
        # Hydra refuses it.
        ("reward.buffer=[1,2]", ""),
        ("reward.reward_manager.name=dapo", ""),
        ("reward.reward_manager=null", ""),
        ("'reward.reward_manager={name: dapo}'", ""),
        ("reward.reward_manager=$MANAGER", ""),
    ],
)
def test_one_value_in_place_of_a_section_is_an_error(
    configuration: VerlConfiguration, setting: str, fix: str
) -> None:
    told = [one for one in lint(configuration, setting).findings if one.rule == "CONFIG-TYPE"]
    assert [one.fix for one in told] == ([fix] if fix else [])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (f"{ROLLOUT}multi_turn.tool_config_path=tools.yaml", ["multi_turn.tool_config_path"]),
        ("reward.buffer.len=4", ["reward.buffer.len"]),
        # The section is on, it is off by the script itself, or verl reads the setting in any case.
        ("reward.buffer.len=4 reward.buffer.enable=True", []),
        ("reward.buffer.len=4 reward.buffer.enable=False", []),
        (f"{ROLLOUT}multi_turn.format=qwen", []),
        # Nothing reads it with the switch on, as far as verl was followed.
        ("reward.buffer.of=5", []),
        # The default changes nothing.
        ("reward.buffer.len=0", []),
    ],
)
def test_a_setting_whose_section_is_off_is_told(
    configuration: VerlConfiguration, settings: str, told: list[str]
) -> None:
    findings = [one for one in lint(configuration, settings).findings if one.rule == "UNREAD"]
    assert len(findings) == len(told)
    assert all(key in one.message for key, one in zip(told, findings, strict=True))
    assert all("only if" in one.why and ".enable=true" in one.fix for one in findings)


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("verl/utils/reward_score/gsm8.py", "did you mean verl/utils/reward_score/gsm8k.py?"),
        ("$PWD/verl/other/reward.py", "give the path of a file that exists"),
        ("$(pwd)/verl/other/reward.py", "give the path of a file that exists"),
        ("./verl/utils/reward_score/gsm8k.py", ""),
        ("/data/verl/reward.py", ""),
        ("recipe/mine/reward.py", ""),
        ("verl/$NAME/reward.py", ""),
    ],
)
def test_a_file_that_the_repository_lacks_is_told(
    configuration: VerlConfiguration, value: str, fix: str
) -> None:
    result = lint(configuration, f"reward.score={value}")
    assert [one.fix for one in result.findings if one.rule == "NO-FILE"] == ([fix] if fix else [])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("trainer.mode=3", "verl stops: 'int' object has no attribute 'lower'"),
        (f"{ROLLOUT}name=True", "verl stops: 'bool' object has no attribute 'upper'"),
        ("trainer.mode=Slow", ""),
    ],
)
def test_a_value_without_the_method_that_verl_calls_stops_it(
    configuration: VerlConfiguration, setting: str, told: str
) -> None:
    found = [one.message for one in lint(configuration, setting).findings if one.rule == "VERL-CHECK"]
    assert found == ([told] if told else [])


@pytest.mark.parametrize(
    ("option", "release", "told"),
    [
        (
            "disable_mm_preprocessor_cache=True",
            "0.13.0",
            "vllm 0.13.0 has no option disable_mm_preprocessor_cache",
        ),
        ("disable_mm_preprocessor_cache=True", "0.13.0rc2", "vllm 0.13.0 has no option"),
        ("disable_mm_preprocessor_cache=True", "0.11.0", ""),
        # verl leaves out a switch that is off.
        ("disable_mm_preprocessor_cache=False", "0.13.0", ""),
        ("swap_space=4", "0.18.0", "vllm 0.18.0 has no option swap_space"),
        ("swap_space=4", "0.13.0", ""),
        ("tool_call_parser=hermes", "0.23.0", ""),
        ("compilation_config.mode=0", "0.23.0", ""),
        ("no_such_thing=1", "0.23.0", "vllm 0.23.0 has no option no_such_thing"),
        ("no_such_thing=1", "", ""),
        ("no_such_thing=1", "0.23.0@0123456", ""),
    ],
)
def test_an_option_that_the_release_of_vllm_lacks_is_an_error(
    configuration: VerlConfiguration, option: str, release: str, told: str
) -> None:
    result = lint(configuration, f"+{ROLLOUT}engine_kwargs.vllm.{option}", release)
    found = [one for one in result.findings if one.rule == "ENGINE-OPTION"]
    assert len(found) == bool(told)
    assert all(told in one.message and one.severity == "error" for one in found)


def test_what_the_program_is_not_found_by_has_its_own_line(configuration: VerlConfiguration) -> None:
    command = (
        "ray job submit -- \\\n  python -m {} \\\n  --config-name={} \\\n  actor_rollout_ref.rollout.n=2"
    )
    for program, name, line in (
        ("verl.trainer.main_pp", "ppo_trainer", 2),
        ("verl.trainer.main_ppo", "ppo_trainr", 3),
    ):
        script = parse_script(command.format(program, name), "run.sh")
        [finding] = [
            one
            for one in lint_script(script, {"verl": "0.9.1"}, configuration).findings
            if one.rule == "NO-PROGRAM"
        ]
        assert finding.line == line
