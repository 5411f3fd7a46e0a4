"""The lint rules: data in `rules/`, checked when it is read."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from harness.compat.lint.rule_expression import ExpressionError, ExpressionNode, names_in, parse_expression
from harness.errors import InputError, Location
from harness.matrix.model.versions import Scheme, Specifier, parse_specifier

RULES_FOLDER = Path(__file__).with_name("rules")
RULE_FILES = ("gspo.yaml", "loss.yaml", "npu.yaml", "run.yaml")
PLACEHOLDER = re.compile(r"\{([\w.]+)\}")
# Names whose values are versions, with how those are ordered.
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
JOB_NAMES = ("cards", "config", "device", "entry", "nodes")
PREFIXES = ("env.", "fact.", "model.")


Data = TypeVar("Data", bound=BaseModel)


class _RuleData(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    severity: Literal["error", "warning", "note"]
    when: str
    at: tuple[str, ...] = ()
    message: str
    why: str
    fix: str
    source: str
    verified: Literal["code", "doc", "issue", "measured", "seed"]


class _DefaultData(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    value: bool | int | float | str | None = None
    same_as: str = ""
    verl: str = ""


class _ModelData(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    match: str
    query_groups: int
    heads: int
    experts: int
    source: str


@dataclass(frozen=True, kw_only=True)
class LintRule:
    """One rule: fires where `condition` is true; points to the first of `at` that was set."""

    id: str
    severity: str
    condition: ExpressionNode
    at: tuple[str, ...]
    message: str
    why: str
    fix: str
    source: str
    verified: str


@dataclass(frozen=True, kw_only=True)
class ConfigDefault:
    """What a key holds when nobody sets it, for versions of verl in `versions` (None: all)."""

    key: str
    value: Any
    same_as: str
    versions: Specifier | None


@dataclass(frozen=True, kw_only=True)
class Ruleset:
    """All rules, and what their conditions refer to."""

    rules: tuple[LintRule, ...]
    names: Mapping[str, str]
    defaults: tuple[ConfigDefault, ...]
    models: tuple[Mapping[str, Any], ...]

    def model_facts(self, model: str) -> Mapping[str, Any]:
        """Facts of the model a name or path speaks of; empty when it is not known."""
        plain = re.sub(r"[-_.\s]", "", model).lower()
        return next((facts for facts in self.models if facts["match"] in plain), {})


@functools.cache
def load_ruleset(folder: Path = RULES_FOLDER) -> Ruleset:
    """Read and check the rules; InputError names the file and the rule that is wrong."""
    names = dict(_read(folder / "names.yaml"))
    loaded = [rule for name in RULE_FILES for rule in _rules(folder / name, names)]
    twice = {rule.id for rule in loaded if sum(other.id == rule.id for other in loaded) > 1}
    if twice:
        raise InputError(f"two rules are called {min(twice)}", where=Location(folder))
    return Ruleset(
        rules=tuple(loaded),
        names=names,
        defaults=tuple(_default(data) for data in _validated(folder / "defaults.yaml", _DefaultData)),
        models=tuple(model.model_dump() for model in _validated(folder / "models.yaml", _ModelData)),
    )


def _read(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError("these rules cannot be read", where=Location(file), why=str(error)) from error


def _validated(file: Path, kind: type[Data]) -> list[Data]:
    try:
        return [kind.model_validate(item) for item in _read(file)]
    except ValidationError as error:
        raise InputError("this file of rules is wrong", where=Location(file), why=str(error)) from error


def _rules(file: Path, names: Mapping[str, str]) -> list[LintRule]:
    rules = []
    for data in _validated(file, _RuleData):
        try:
            condition = parse_expression(data.when)
        except ExpressionError as error:
            raise InputError(
                f"the condition of {data.id} cannot be read", where=Location(file), why=str(error)
            ) from error
        written = PLACEHOLDER.findall(" ".join((data.message, data.why, data.fix)))
        for name in {*names_in(condition), *data.at, *written}:
            _require_name(name, names, data.id, file)
        fields = data.model_dump(exclude={"when"})
        rules.append(LintRule(condition=condition, **fields))
    return rules


def _require_name(name: str, names: Mapping[str, str], rule: str, file: Path) -> None:
    if name in names or name in VERSION_NAMES or name in JOB_NAMES or name.startswith(PREFIXES):
        return
    raise InputError(
        f"{rule} speaks of {name!r}, which means nothing",
        where=Location(file),
        fix="add it to names.yaml",
    )


def _default(data: _DefaultData) -> ConfigDefault:
    versions = parse_specifier(Scheme.PEP440, data.verl) if data.verl else None
    return ConfigDefault(key=data.key, value=data.value, same_as=data.same_as, versions=versions)
