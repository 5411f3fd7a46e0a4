"""The settings of a training job: overrides, environment variables, and where each was set."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeGuard

from harness.compat.lint.rule_expression import UNKNOWN, UNSET
from harness.compat.lint.shell.values import ScriptValue
from harness.errors import InputError, Location

#: `trainer.n_gpus_per_node` in the configuration of every verl.
DEFAULT_CARDS = 8
_NAMED = re.compile(r"\$(\w+)")
_LOCATION = re.compile(r"\$\{\w+\}")
FactValue: TypeAlias = "bool | int | float | str"
#: Variables that only programs for NPUs read, and a word in the names of scripts for them.
_NPU_VARIABLES = ("ASCEND_", "ATB_", "HCCL_", "PYTORCH_NPU_", "TASK_QUEUE_ENABLE", "VLLM_ASCEND_")
_NPU_FILE = re.compile(r"(?:^|[_.-])(?:npu|ascend)(?:[_.-]|$)")
SPECIAL_WORDS = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """One job: Hydra overrides by dotted key, environment variables, entry module, nodes and cards.

    started_as: whether Python gets `entry` as a module (`-m`) or as a file; "" if a recipe does not say.
    arguments: the overrides in the order in which Hydra gets them. options: `--config-name` and others.
    named_at: where the script names `entry` and its options, which can be on other lines than `where`.
    cards: per node; 0 when not known. added: keys set with Hydra's `+`. removed: keys removed with `~`.
    states_hosts: whether a comment of the script states its nodes and cards.
    has_unread_arguments: whether further overrides may be in arguments that were not read.
    missing_values: keys with nothing after `=`, because a space separates them from their value by mistake.
    cut_off: overrides in a command of their own after the job, because the line before does not go on.
    unknown_options: words that begin with a dash and are no option of Hydra.
    used_variables: those that the script itself uses.
    unpassed: variables that the script sets, and that it passes to no program: not exported, or set too late.
    unset_variables: those that the script uses and never sets, with a place where it uses them.
    processes: what `torchrun` starts on all nodes; 0 if it is another launcher, or only a run knows them.
    facts: values measured in earlier runs of the recipe, or that the script shows, which some rules use.
    """

    name: str
    where: Location
    overrides: Mapping[str, ScriptValue]
    env: Mapping[str, ScriptValue]
    entry: str = ""
    started_as: Literal["", "module", "file"] = ""
    arguments: tuple[ScriptValue, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    named_at: Mapping[str, Location] = field(default_factory=dict)
    device: str = "npu"
    nodes: int = 0
    cards: int = 0
    states_hosts: bool = False
    config: str = ""
    model: str = ""
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    has_unread_arguments: bool = False
    missing_values: Mapping[str, ScriptValue] = field(default_factory=dict)
    cut_off: tuple[ScriptValue, ...] = ()
    unknown_options: tuple[ScriptValue, ...] = ()
    unpassed: Mapping[str, ScriptValue] = field(default_factory=dict)
    unset_variables: Mapping[str, ScriptValue] = field(default_factory=dict)
    used_variables: frozenset[str] = frozenset()
    processes: int = 0
    facts: Mapping[str, FactValue] = field(default_factory=dict)

    @property
    def is_verl(self) -> bool:
        """Whether this is a verl job. The rules are about verl's settings only."""
        keys = any(key.startswith(("actor_rollout_ref.", "algorithm.")) for key in self.overrides)
        return keys or self.entry.startswith(("verl.", "verl/", "recipe.", "recipe/"))

    @property
    def states_npus(self) -> bool:
        """Whether the script itself says that the job is for NPUs. `device` is npu also without that."""
        device = self.overrides.get("trainer.device")
        return (
            (device is not None and device.text == "npu")
            or _NPU_FILE.search(self.name) is not None
            or any(name.startswith(_NPU_VARIABLES) for name in self.env)
        )

    @classmethod
    def from_facet(cls, facet: Mapping[str, Any], device: str = "npu") -> JobSettings:
        """Read the facet `recipe`. The location of every value is the recipe."""
        where = Location(f"recipe {facet['name']}")
        overrides, added, arguments = {}, set(), []
        for key, value in facet.get("overrides", {}).items():
            bare = key.lstrip("+")
            if bare != key:
                added.add(bare)
            text, unknown = hydra_text(value), _unresolved_variable(hydra_text(value))
            overrides[bare] = ScriptValue(text=text, where=where, unknown=unknown)
            arguments.append(ScriptValue(text=f"{key}={text}", where=where, unknown=unknown))
        entry = str(facet.get("entry", ""))
        named = {
            option: str(facet[key])
            for option, key in (("--config-path", "config_path"), ("--config-name", "config"))
            if facet.get(key)
        }
        options = named or _megatron_options(entry, overrides)
        return cls(
            name=str(facet["name"]),
            where=where,
            overrides=overrides,
            env={
                name: ScriptValue(text=str(text), where=where, unknown=_unresolved_variable(str(text)))
                for name, text in facet.get("env", {}).items()
            },
            entry=entry,
            arguments=tuple(arguments),
            options=options,
            device=device,
            nodes=int(facet.get("nodes") or 0),
            cards=int(facet.get("cards") or 0),
            config=options.get("--config-name", ""),
            model=str(facet.get("model", "")),
            added=frozenset(added),
            facts=facet.get("facts", {}),
        )

    def as_facet(self) -> dict[str, Any]:
        """The facet `recipe` of this job, the reverse of `from_facet`.

        The hosts are those that the job requests; verl's default is one node with eight cards. InputError for
        what a recipe cannot state: a value that only a run of the script knows, and `~key`.
        """
        overrides: dict[str, str] = {}
        for word in self.arguments:
            key, equals, value = word.text.partition("=")
            if not equals or key.startswith("~"):
                raise _no_recipe(
                    f"the override {word.text!r}", word.where, "it removes or only names a setting"
                )
            overrides.pop(key, None)
            overrides[key] = _stated(value, word, key)
        if self.has_unread_arguments:
            raise _no_recipe("the job", self.where, "some of its arguments are given from outside")
        separate = None if self.states_hosts else self.overrides.get("rollout.n_gpus_per_node")
        return {
            "name": self.name,
            "entry": self.entry,
            "overrides": overrides,
            "nodes": self.nodes or 1,
            "cards": (self.cards or DEFAULT_CARDS) + (int(separate.text) if _is_number(separate) else 0),
            "model": self.model,
            "kind": "train",
            "env": {name: _stated(value.text, value, name) for name, value in self.env.items()},
            "config": self.options.get("--config-name", "").removesuffix(".yaml"),
            "config_path": self.options.get("--config-path", ""),
        }


def _is_number(value: ScriptValue | None) -> TypeGuard[ScriptValue]:
    return value is not None and value.text.isdecimal()


def _stated(text: str, value: ScriptValue, name: str) -> str:
    """A value as a recipe has it, in which `${NAME}` is a location of the host."""
    plain = _NAMED.sub(r"${\1}", text)
    if value.unknown and not _LOCATION.search(plain):
        raise _no_recipe(f"{name}={text}", value.where, f"only a run knows {value.unknown}")
    return plain


def _no_recipe(what: str, where: Location, why: str) -> InputError:
    return InputError(
        f"{what} cannot be part of a recipe",
        where=where,
        why=why,
        fix="write the value into the script, or give it with --set KEY=VALUE",
    )


def parsed_value(value: ScriptValue) -> Any:
    """The value as Hydra reads it: bool, number or string; UNSET for null, UNKNOWN when not known.

    A path with an unknown variable is used as text, because equal texts are equal paths.
    """
    return UNKNOWN if value.unknown and "/" not in value.text else parse_value(value.text)


def parse_value(text: str) -> Any:
    """The value that Hydra reads from a text; quotes are removed."""
    stripped = text.strip()
    if len(stripped) >= 2 and stripped[0] == stripped[-1] and stripped[0] in "'\"":
        return stripped[1:-1]
    if stripped.lower() in SPECIAL_WORDS:
        word = SPECIAL_WORDS[stripped.lower()]
        return UNSET if word is None else word
    try:
        return int(stripped)
    except ValueError:
        pass
    try:
        return float(stripped)
    except ValueError:
        return stripped


def hydra_text(value: Any) -> str:
    """A value of a YAML recipe as it is written on a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _megatron_options(entry: str, overrides: Mapping[str, ScriptValue]) -> dict[str, str]:
    """The options with which the program of a recipe without options finds its configuration.

    A recipe that sets Megatron's keys and names no configuration has verl's for Megatron. It is in the folder
    of verl's trainer, and programs in other folders find it with `--config-path`.
    """
    if not any(".megatron." in key for key in overrides):
        return {}
    folder = posixpath.relpath("verl/trainer/config", posixpath.join("", *entry.split(".")[:-1]) or ".")
    return {"--config-path": folder, "--config-name": "ppo_megatron_trainer"}


def _unresolved_variable(text: str) -> str:
    """The variable in `${NAME}/...`, whose value is known only on the machine that runs the job."""
    start = text.find("${")
    return text[start + 2 : text.find("}", start)] if start >= 0 else ""
