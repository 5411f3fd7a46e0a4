"""A training job as rules see it: what was set, where, and what holds where nothing was set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.compat.lint.rule_expression import UNKNOWN, UNSET
from harness.errors import Location

SPECIAL_WORDS = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True, kw_only=True)
class SettingValue:
    """A setting: its text, whether all of it is known, and where it was made.

    `unknown` names what kept the text from being known (a shell variable without a value), or "".
    """

    text: str
    where: Location
    unknown: str = ""

    def parsed(self) -> Any:
        """The value as Hydra reads it: bool, number, string; UNSET for null, UNKNOWN when it is not known.

        A path is its text, whatever the variable in it stands for: two equal texts are one path.
        """
        return UNKNOWN if self.unknown and "/" not in self.text else parse_value(self.text)


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """One launch: `overrides` by dotted key, environment variables, the module started, nodes and cards.

    `added` are keys given with Hydra's `+`, `removed` those given with `~`; `cards` is per node, 0 unknown.
    `torn` are keys without a value whose value stands behind a space, as a word of its own.
    """

    name: str
    where: Location
    overrides: Mapping[str, SettingValue]
    env: Mapping[str, SettingValue]
    entry: str = ""
    device: str = "npu"
    nodes: int = 0
    cards: int = 0
    config: str = ""
    model: str = ""
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    torn: Mapping[str, SettingValue] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_verl(self) -> bool:
        """Whether this is a job of verl, whose settings the rules speak of."""
        keys = any(key.startswith(("actor_rollout_ref.", "algorithm.")) for key in self.overrides)
        return keys or self.entry.startswith(("verl.", "recipe."))

    @classmethod
    def from_facet(cls, facet: Mapping[str, Any], device: str = "npu") -> JobSettings:
        """Read the facet `recipe`; every value's place is the recipe itself."""
        where = Location(f"recipe {facet['name']}")
        overrides, added = {}, set()
        for key, value in facet.get("overrides", {}).items():
            bare = key.lstrip("+")
            if bare != key:
                added.add(bare)
            overrides[bare] = SettingValue(
                text=hydra_text(value), where=where, unknown=_unresolved_variable(hydra_text(value))
            )
        return cls(
            name=str(facet["name"]),
            where=where,
            overrides=overrides,
            env={
                name: SettingValue(text=str(text), where=where) for name, text in facet.get("env", {}).items()
            },
            entry=str(facet.get("entry", "")),
            device=device,
            nodes=int(facet.get("nodes") or 0),
            cards=int(facet.get("cards") or 0),
            config=str(facet.get("config") or _default_config(overrides)),
            model=str(facet.get("model", "")),
            added=frozenset(added),
            facts=facet.get("facts", {}),
        )


def parse_value(text: str) -> Any:
    """Text as Hydra would type it; quotes are taken off."""
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
    """A value of a YAML recipe as it would stand on a command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _default_config(overrides: Mapping[str, SettingValue]) -> str:
    """A recipe that names no configuration and speaks of Megatron means Megatron's."""
    return "ppo_megatron_trainer" if any(".megatron." in key for key in overrides) else ""


def _unresolved_variable(text: str) -> str:
    """The variable in `${NAME}/...`, which only the machine that runs it knows."""
    start = text.find("${")
    return text[start + 2 : text.find("}", start)] if start >= 0 else ""
