"""Load the lint rules from `rules/*.yaml` and validate them."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation, ValidationError

from harness.compat.lint.rule_expression import ExpressionNode, names_in, parse_expression
from harness.errors import InputError, Location
from harness.matrix.model.versions import Scheme, Specifier, parse_specifier
from harness.package import data_folder
from harness.yaml_loader import FAST_LOADER

# The safe loader, in C where available: every `lint` reads the rules.
RULES_FOLDER = data_folder("compat/lint/rules")
RULE_FILES = ("gspo.yaml", "lengths.yaml", "loss.yaml", "npu.yaml", "run.yaml")
PLACEHOLDER = re.compile(r"\{([\w.]+)\}")
# Names whose values are versions, with the scheme that orders them.
VERSION_NAMES = {
    "cann": Scheme.CANN,
    "megatron_core": Scheme.PEP440,
    "mindspeed": Scheme.PEP440,
    "python": Scheme.PYTHON,
    "torch": Scheme.PEP440,
    "torch_npu": Scheme.PEP440,
    "transformers": Scheme.PEP440,
    "verl": Scheme.PEP440,
    "vllm": Scheme.PEP440,
    "vllm_ascend": Scheme.PEP440,
}
#: What a script shows besides settings: the cards of `ray start`, and the nodes that it requests from Slurm.
SCRIPT_FACTS = ("ray_cards", "slurm_nodes")
#: Files of data: with an ending that later releases of verl do not read, and those of them that are texts.
DATA_NAMES = ("other_data", "text_data")
JOB_NAMES = (
    "cards",
    "config",
    "device",
    "entry",
    "for_npus",
    "nodes",
    "visible_cards",
    *DATA_NAMES,
    *SCRIPT_FACTS,
)
PREFIXES = ("env.", "fact.", "model.")


class _RuleFileModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


Entry = TypeVar("Entry", bound=_RuleFileModel)


ProgramKind = Literal["policy", "sft", "generation", "evaluation", "merger", "other"]


class RuleExample(_RuleFileModel):
    """Settings that a rule reports, and those that correct them.

    Each is `key=value`, `env.NAME=value`, `verl=0.9.1`, `fact.NAME=value`, `entry=...` or `model=...`, or
    `~key` for a key that is not set.
    """

    wrong: tuple[str, ...]
    right: tuple[str, ...]


class LintRule(_RuleFileModel):
    """A rule. It reports where `condition` is true, at the first setting of `at` that the job sets.

    programs: the kinds of programs that the rule speaks of; policy is reinforcement learning.
    verified: how the rule is known: from the `code` or documentation (`doc`) of the package, an `issue`, a
    measurement (`measured`), or the list of cases that this project started from (`seed`).
    change: name -> the value that corrects a setting of the job, if there is only one.
    covered_by: the rule whose finding at the same place says the same and more, or "".
    """

    id: str
    severity: Literal["error", "warning", "note"]
    condition: Annotated[SkipValidation[ExpressionNode], BeforeValidator(parse_expression)] = Field(
        alias="when"
    )
    at: tuple[str, ...] = ()
    programs: tuple[ProgramKind, ...] = ("policy",)
    message: str
    why: str
    fix: str
    change: Mapping[str, str] = Field(default_factory=dict)
    covered_by: str = ""
    example: RuleExample | None = None
    source: str
    verified: Literal["code", "doc", "issue", "measured", "seed"]


class ConfigDefault(_RuleFileModel):
    """The default value of a configuration key in some versions of verl (`versions` None: in all).

    value: None if the configuration lacks the key. same_as: another key whose value is the default, or "".
    config: the only configuration of verl's trainer that has this default, or "".
    """

    key: str
    value: bool | int | float | str | None = None
    same_as: str = ""
    config: str = ""
    versions: Annotated[
        SkipValidation[Specifier] | None, BeforeValidator(partial(parse_specifier, Scheme.PEP440))
    ] = Field(default=None, alias="verl")


class ModelFacts(_RuleFileModel):
    """An entry of models.yaml: facts from the config.json of the models whose names contain `match`.

    parameters: billions of parameters. positions: max_position_embeddings, None if the models differ.
    layers: num_hidden_layers. embedding: vocab_size x hidden_size, in millions.
    """

    match: str
    query_groups: int
    heads: int
    experts: int
    parameters: float | None = None
    layers: int | None = None
    embedding: float | None = None
    positions: int | None = None
    source: str


class NameRegistry(_RuleFileModel):
    """An entry of registries.yaml: a setting whose values are names that this verl knows.

    decorator: registers the names. compares: a function that compares its parameter of this name with them.
    constant: the set of the names. has_list: whether the setting is several names with commas.
    folders: where they are. unless: a setting with which further names can be registered. if_true: the
    setting without which verl does not read the name, or "". is_ignored: whether verl goes on without what
    another name stands for, and does not stop.
    """

    key: str
    decorator: str = ""
    compares: tuple[str, str] | None = None
    constant: str = ""
    has_list: bool = False
    is_ignored: bool = False
    folders: tuple[str, ...]
    message: str
    unless: str = ""
    if_true: str = ""
    source: str


class OptionEntry(_RuleFileModel):
    """An option in the value of a variable: what it can be, and the first versions that have it.

    since: one version for each release of torch; none if all have it.
    """

    form: Literal["truth", "integer", "number", "text"]
    low: float = 0
    high: float = math.inf
    since: tuple[str, ...] = ()


class EnvironmentEntry(_RuleFileModel):
    """An entry of environment.yaml: variables, who reads them, and what their values can be.

    form: an integer or a number from `low` to `high`, one of the `choices`, a text that matches `pattern`, a
    list of cards, of ranges of ports, or of `option:value` with these `options`, or the address of a network
    card; a text can be anything.
    any_case: whether the reader takes the choices in small and in large letters.
    """

    names: tuple[str, ...]
    read_by: str
    form: Literal[
        "text", "integer", "number", "choice", "pattern", "cards", "options", "ports", "address"
    ] = "text"
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    pattern: re.Pattern[str] = re.compile("")
    options: Mapping[str, OptionEntry] = {}
    any_case: bool = False
    source: str


class CommandEntry(_RuleFileModel):
    """An entry of commands.yaml: the options of a command that scripts start.

    flags: options without a value. json: options whose value is JSON. files: options whose value is the path
    of a file. shortens: whether the command takes the first letters of an option for it, and underscores for
    dashes.
    """

    command: tuple[str, ...]
    options: tuple[str, ...]
    flags: tuple[str, ...]
    json_options: tuple[str, ...] = Field(default=(), alias="json")
    file_options: tuple[str, ...] = Field(default=(), alias="files")
    shortens: bool = False
    source: str


class EngineArguments(_RuleFileModel):
    """An entry of engine_arguments.yaml: options that verl hands on to the rollout's engine, or to Megatron.

    section: the part of the options, "" for the engine's own; of Megatron, the mapping in verl's
    configuration. also: the sections of the same engine whose options it has too. choices: the texts that an
    option takes. read_in: option -> the versions of vllm-ascend that read it, if not all of them do.
    """

    engine: str
    section: str
    names: tuple[str, ...]
    also: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = {}
    read_in: Mapping[
        str,
        Annotated[SkipValidation[Specifier], BeforeValidator(partial(parse_specifier, Scheme.PEP440))],
    ] = {}
    source: str


class ProgramEntry(_RuleFileModel):
    """An entry of programs.yaml: the kind of the programs whose module or file `entry` matches."""

    kind: ProgramKind
    entry: re.Pattern[str]
    source: str


#: The configuration of verl's trainer that a job has if it names none.
PPO_CONFIG = "ppo_trainer"


@dataclass(frozen=True, kw_only=True)
class Ruleset:
    """All rules, and the names, defaults and models that their conditions use."""

    rules: tuple[LintRule, ...]
    names: Mapping[str, str]
    defaults: tuple[ConfigDefault, ...]
    models: tuple[ModelFacts, ...]
    programs: tuple[ProgramEntry, ...]
    registries: tuple[NameRegistry, ...]
    environment: tuple[EnvironmentEntry, ...]
    commands: tuple[CommandEntry, ...]
    engine_arguments: tuple[EngineArguments, ...]

    @functools.cached_property
    def known_configs(self) -> frozenset[str]:
        """The configurations of verl's trainer whose default values are known."""
        return frozenset({PPO_CONFIG, *(default.config for default in self.defaults if default.config)})

    def program_kind(self, entry: str, *, trains_policy: bool) -> ProgramKind:
        """The kind of a program; trains_policy: whether it is configured for reinforcement learning."""
        found = next((one.kind for one in self.programs if one.entry.fullmatch(entry)), None)
        return found or ("policy" if trains_policy else "other")

    def model_facts(self, model: str) -> ModelFacts | None:
        """The facts of the model with this name or path; None when it is not in models.yaml."""
        plain = re.sub(r"[-_.\s]", "", model).lower()
        return next((facts for facts in self.models if facts.match in plain), None)


@functools.cache
def load_ruleset(folder: Path = RULES_FOLDER) -> Ruleset:
    """Load and validate the rules; InputError names the invalid file and rule."""
    names = dict(_read(folder / "names.yaml"))
    loaded = [rule for name in RULE_FILES for rule in _rules(folder / name, names)]
    duplicates = {rule.id for rule in loaded if sum(other.id == rule.id for other in loaded) > 1}
    if duplicates:
        raise InputError(f"two rules have the id {min(duplicates)}", where=Location(folder))
    return Ruleset(
        rules=tuple(loaded),
        names=names,
        defaults=tuple(_validated(folder / "defaults.yaml", ConfigDefault)),
        models=tuple(_validated(folder / "models.yaml", ModelFacts)),
        programs=tuple(_validated(folder / "programs.yaml", ProgramEntry)),
        registries=tuple(_validated(folder / "registries.yaml", NameRegistry)),
        environment=tuple(_validated(folder / "environment.yaml", EnvironmentEntry)),
        commands=tuple(_validated(folder / "commands.yaml", CommandEntry)),
        engine_arguments=tuple(_validated(folder / "engine_arguments.yaml", EngineArguments)),
    )


def _read(file: Path) -> Any:
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=FAST_LOADER)  # noqa: S506
    except (OSError, yaml.YAMLError) as error:
        raise InputError("these rules cannot be read", where=Location(file), why=str(error)) from error


def _validated(file: Path, entry: type[Entry]) -> list[Entry]:
    try:
        return [entry.model_validate(item) for item in _read(file)]
    except ValidationError as error:
        raise InputError("this file of rules is not valid", where=Location(file), why=str(error)) from error


def _rules(file: Path, names: Mapping[str, str]) -> list[LintRule]:
    rules = _validated(file, LintRule)
    for rule in rules:
        placeholders = PLACEHOLDER.findall(" ".join((rule.message, rule.why, rule.fix)))
        for name in {*names_in(rule.condition), *rule.at, *rule.change, *placeholders}:
            _require_name(name, names, rule.id, file)
    return rules


def _require_name(name: str, names: Mapping[str, str], rule: str, file: Path) -> None:
    if name in names or name in VERSION_NAMES or name in JOB_NAMES or name.startswith(PREFIXES):
        return
    raise InputError(
        f"{rule} uses the unknown name {name!r}",
        where=Location(file),
        fix="add it to names.yaml",
    )
