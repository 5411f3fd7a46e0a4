"""All rules of lint as they are explained to a reader: those of `rules/*.yaml` and those in the code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.compat.lint.engine_findings import ENGINE_RULE
from harness.compat.lint.engine_options import ENGINE_OPTION_RULE
from harness.compat.lint.environment_findings import (
    ENV_LOST_RULE,
    ENV_NAME_RULE,
    ENV_VALUE_RULE,
    UNSET_RULE,
)
from harness.compat.lint.lint_measurements import CONFIG_RULE, MISSING_VALUE_RULE
from harness.compat.lint.missing_files import MISSING_FILE_RULE
from harness.compat.lint.program_findings import PROGRAM_RULE
from harness.compat.lint.registry_findings import REGISTRY_RULE
from harness.compat.lint.repeated_settings import REPEATED_RULE
from harness.compat.lint.ruleset import PLACEHOLDER, VERSION_NAMES, LintRule, load_ruleset
from harness.compat.lint.serving.server_findings import SERVE_RULE
from harness.compat.lint.typo_findings import TYPO_RULE, UNKNOWN_RULE
from harness.compat.lint.uncomposed import PROGRAM_MISSING, TYPE_RULE
from harness.compat.lint.unread_settings import UNREAD_RULE
from harness.errors import InputError

_ACTOR = "actor_rollout_ref.actor"
_ENGINE = "actor_rollout_ref.rollout.engine_kwargs.vllm"


@dataclass(frozen=True, kw_only=True)
class RuleExplanation:
    """A rule: what it reports, why, the remedy, where this can be looked up, and an example.

    verified: how the rule is known (see `LintRule`). wrong, right: settings that it reports, and those that
    correct them.
    """

    id: str
    severity: str
    summary: str
    why: str
    fix: str
    source: str
    verified: str
    wrong: tuple[str, ...]
    right: tuple[str, ...]


CODE_RULES = (
    RuleExplanation(
        id=CONFIG_RULE,
        severity="error",
        summary="Hydra refuses an override",
        why="Hydra composes the configuration of the verl that is given; what it refuses stops the job at "
        "once, for example a key that this verl does not have",
        fix="write the key as this verl has it; the finding names the most similar ones",
        source="the YAML files of the verl that the finding names, composed by hydra-core",
        verified="code",
        wrong=(f"{_ACTOR}.ppo_mini_batch_szie=64",),
        right=(f"{_ACTOR}.ppo_mini_batch_size=64",),
    ),
    RuleExplanation(
        id=TYPE_RULE,
        severity="error",
        summary="a text is given where verl has a number or a truth value, or one value for a whole section",
        why="Hydra takes any value for a key that has no type; verl computes with it, or reads a key of the "
        "section, and stops",
        fix="give a number, or True or False, or set the key inside the section",
        source="the default in the YAML files of the verl that the finding names",
        verified="code",
        wrong=(f"{_ACTOR}.use_dynamic_bsz=Ture",),
        right=(f"{_ACTOR}.use_dynamic_bsz=True",),
    ),
    RuleExplanation(
        id=PROGRAM_MISSING,
        severity="error",
        summary="the program that the job starts does not exist in this verl",
        why="programs move between releases of verl; Python stops with: No module named",
        fix="start the program that this verl has; the finding names the most similar ones",
        source="the files of the verl that the finding names",
        verified="code",
        wrong=("python3 -m verl.trainer.main_ppo_sync",),
        right=("python3 -m verl.trainer.main_ppo",),
    ),
    RuleExplanation(
        id=MISSING_FILE_RULE,
        severity="warning",
        summary="a setting names a file in a folder of verl's repository that has no such file",
        why="a relative path is one from the folder in which the job starts, which is the repository of verl",
        fix="give the path of a file that exists; the finding names the most similar one",
        source="the files of the verl that the finding names",
        verified="code",
        wrong=("custom_reward_function.path=verl/utils/reward_score/gsm8.py",),
        right=("custom_reward_function.path=verl/utils/reward_score/gsm8k.py",),
    ),
    RuleExplanation(
        id=TYPO_RULE,
        severity="warning",
        summary="a text looks like a misspelling of one that verl knows for this setting",
        why="verl checks many texts only when a worker, a data loader or the rollout uses them, and then "
        "stops or takes another branch",
        fix="write the text as verl's code has it; the finding names it",
        source="the comparisons in the modules of the verl that the finding names",
        verified="code",
        wrong=("data.truncation=rihgt",),
        right=("data.truncation=right",),
    ),
    RuleExplanation(
        id=REGISTRY_RULE,
        severity="error",
        summary="a setting has a name that this verl does not register",
        why="estimators of advantages, losses, reward managers and checkpoint engines are looked up by name "
        "in the middle of a run; verl stops at another name",
        fix="choose a name that the finding lists",
        source="the decorators that register names in the verl that the finding names (registries.yaml)",
        verified="code",
        wrong=("algorithm.adv_estimator=grop",),
        right=("algorithm.adv_estimator=grpo",),
    ),
    RuleExplanation(
        id=PROGRAM_RULE,
        severity="error",
        summary="a check of verl itself fails with this configuration",
        why="verl's program is followed with the composed configuration, without running it; the finding has "
        "the message, file and line of the error that verl raises",
        fix="change one of the settings that the finding names",
        source="the line of verl that the finding names",
        verified="code",
        wrong=("data.train_batch_size=64", f"{_ACTOR}.ppo_mini_batch_size=128"),
        right=("data.train_batch_size=128", f"{_ACTOR}.ppo_mini_batch_size=128"),
    ),
    RuleExplanation(
        id=ENGINE_RULE,
        severity="error",
        summary="a check of vllm-ascend, or of vLLM's own arguments, fails",
        why="verl's program is followed to where it starts vLLM, or `vllm serve` is read, and from there "
        "the check of vllm-ascend's platform with these arguments and with the variables that the script "
        "sets, and what vLLM's parser and the classes of its configuration refuse (in `npu-matrix lint`; the "
        "check `lint` of a cell follows vllm-ascend only); the finding has the message, file and line of the "
        "error that this release raises",
        fix="change one of the settings that the finding names",
        source="the line of vllm-ascend or vLLM that the finding names",
        verified="code",
        wrong=(f"+{_ENGINE}.additional_config.eplb_config.eplb_policy_type=5",),
        right=(f"+{_ENGINE}.additional_config.eplb_config.eplb_policy_type=2",),
    ),
    RuleExplanation(
        id=SERVE_RULE,
        severity="error",
        summary="vLLM does not take an argument of a command or a Python call that starts it",
        why="the options of `vllm serve` and of its module are read from the source of the vLLM that is "
        "given, or for which the given vllm-ascend is made: names, types, choices, limits of numbers, and of "
        "JSON the fields with their types; "
        "argparse then reads the command as vLLM's parser does; of a class that a Python file calls, the "
        "arguments are those of its __init__ or its fields",
        fix="write the option or value that the finding names",
        source="the calls of add_argument, and the classes, in the source of that vLLM",
        verified="code",
        wrong=("vllm serve Qwen/Qwen3-8B --max-model-length 8192",),
        right=("vllm serve Qwen/Qwen3-8B --max-model-len 8192",),
    ),
    RuleExplanation(
        id=MISSING_VALUE_RULE,
        severity="error",
        summary="a space separates a key from its value, or a line end an override from its program",
        why="Hydra reads the value as another override and stops",
        fix="remove the space after the equals sign",
        source="Hydra's override grammar; test_grpo_gptoss_20b_fsdp_A2.sh of Ascend/MindSpeed-RL",
        verified="code",
        wrong=("trainer.nnodes= 2",),
        right=("trainer.nnodes=2",),
    ),
    RuleExplanation(
        id=REPEATED_RULE,
        severity="note",
        summary="a later override of the same command replaces this one",
        why="of overrides of one key, Hydra takes the last",
        fix="remove one of the two",
        source="Hydra's documentation, Extended Override Syntax",
        verified="doc",
        wrong=("data.train_batch_size=1024", "data.train_batch_size=512"),
        right=("data.train_batch_size=512",),
    ),
    RuleExplanation(
        id=UNKNOWN_RULE,
        severity="warning",
        summary="a setting has a value that the code of this verl does not know",
        why="verl's code compares the setting with several texts, one of them its default, and no others",
        fix="give one of the values that the finding names",
        source="the line of verl that the finding names",
        verified="code",
        wrong=("trainer.resume_mode=always",),
        right=("trainer.resume_mode=auto",),
    ),
    RuleExplanation(
        id=UNREAD_RULE,
        severity="warning",
        summary="a setting has no effect, because nothing in this verl reads it",
        why="Hydra takes any key with a `+`; verl does not see a key that is misspelt, that is in another "
        "section, that is of an engine which does not run, or whose section is switched off",
        fix="write the key that verl reads; the finding names it where one is near",
        source="the code and the configuration of the verl that the finding names",
        verified="code",
        wrong=("+data.max_prompt_lenght=1024",),
        right=("data.max_prompt_length=1024",),
    ),
    RuleExplanation(
        id=ENGINE_OPTION_RULE,
        severity="error",
        summary="an option of the rollout's engine or of Megatron is misspelt, of another release or refused",
        why="verl hands on what is in engine_kwargs and override_transformer_config without reading it, and "
        "the engine stops at an option that it does not have; of JSON, the names in additional_config are "
        "compared with what the job's vllm-ascend reads, and those of other sections with vLLM's classes",
        fix="write the option as the engine has it; the finding names it",
        source="the surface pack: vllm/engine/arg_utils.py and cli_args.py of each release of vLLM; "
        "engine_arguments.yaml: vllm/config of vLLM 0.11.0 to 0.23.0; "
        "TransformerConfig and others of Megatron-Core 0.12.1 to 0.16.1",
        verified="code",
        wrong=("+actor_rollout_ref.rollout.engine_kwargs.vllm.max_loar_rank=64",),
        right=("+actor_rollout_ref.rollout.engine_kwargs.vllm.max_lora_rank=64",),
    ),
    RuleExplanation(
        id=ENV_NAME_RULE,
        severity="warning",
        summary="an environment variable looks like a misspelling of one that a program reads, or is one of "
        "vLLM's that the release of the job does not read",
        why="nothing reads a variable whose name is misspelt, so that it has no effect, and nobody says so",
        fix="write the name as its reader has it; the finding names it",
        source="environment.yaml: the documentation and sources of CANN, HCCL, torch_npu, vLLM and Ray; the "
        "surface pack: the modules of each release of vLLM and vllm-ascend",
        verified="doc",
        wrong=("export ASCEND_RT_VISIBLE_DEVICE=0,1",),
        right=("export ASCEND_RT_VISIBLE_DEVICES=0,1",),
    ),
    RuleExplanation(
        id=ENV_VALUE_RULE,
        severity="error",
        summary="an environment variable has a value that its reader does not take",
        why="the reader stops, or reads something else from the value than what is meant",
        fix="give the variable a value of its documentation",
        source="environment.yaml: the documentation and sources of CANN, HCCL, torch_npu, vLLM and Ray",
        verified="doc",
        wrong=("export HCCL_CONNECT_TIMEOUT=30m",),
        right=("export HCCL_CONNECT_TIMEOUT=1800",),
    ),
    RuleExplanation(
        id=UNSET_RULE,
        severity="warning",
        summary="a script uses a variable that it sets nowhere",
        why="unless it is given from outside, bash puts nothing in its place, and stops there after set -u; "
        "variables with a default, and those that the script asks for, are not reported",
        fix="set the variable, or give it a default",
        source="the manual of bash, sections Shell Parameter Expansion and The Set Builtin",
        verified="doc",
        wrong=("trainer.n_gpus_per_node=$NDEVICES_PER_NODE",),
        right=("trainer.n_gpus_per_node=${NDEVICES_PER_NODE:-8}",),
    ),
    RuleExplanation(
        id=ENV_LOST_RULE,
        severity="warning",
        summary="an environment variable is set where no program gets it",
        why="a program gets the variables that are exported when it starts",
        fix="export the variable before the command",
        source="the manual of bash, section Environment",
        verified="doc",
        wrong=("HCCL_CONNECT_TIMEOUT=1800",),
        right=("export HCCL_CONNECT_TIMEOUT=1800",),
    ),
)


def explained_rules() -> Mapping[str, RuleExplanation]:
    """Every rule by its id, those in the code first."""
    declared = (_explanation(rule) for rule in load_ruleset().rules)
    return {rule.id: rule for rule in (*CODE_RULES, *declared)}


def explained_rule(name: str) -> RuleExplanation:
    """The rule with this id in letters of any case; the InputError for another name has the nearest ids."""
    rules = explained_rules()
    if name.upper() in rules:
        return rules[name.upper()]
    near = difflib.get_close_matches(name.upper(), rules, n=3, cutoff=0.5)
    raise InputError(
        f"lint has no rule {name!r}",
        fix=f"nearest: {', '.join(near)}" if near else "`npu-matrix lint --rules` lists all",
    )


def example_word(setting: str) -> str:
    """A setting of an example, as a script has it."""
    if setting.startswith("~"):
        return f"({setting[1:].removeprefix('env.')} not set)"
    name, _, value = setting.partition("=")
    if name.startswith("env."):
        return f"export {name[4:]}={value}"
    if name.startswith("fact."):
        return f"({name[5:]} measured: {value})"
    if name in ("entry", "model"):
        return f"({name}: {value})"
    return f"({name} {value})" if name in VERSION_NAMES else setting


def _explanation(rule: LintRule) -> RuleExplanation:
    summary, why, fix = (PLACEHOLDER.sub(_name, text) for text in (rule.message, rule.why, rule.fix))
    return RuleExplanation(
        id=rule.id,
        severity=rule.severity,
        summary=summary,
        why=why,
        fix=fix,
        source=rule.source,
        verified=rule.verified,
        wrong=rule.example.wrong if rule.example else (),
        right=rule.example.right if rule.example else (),
    )


def _name(placeholder: re.Match[str]) -> str:
    """What stands for the value that a finding has: its name in angle brackets."""
    return f"<{placeholder[1].rpartition('.')[2]}>"
