"""What to do about an override that Hydra refuses. Every remedy was tried: Hydra takes it with this verl."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.compat.lint.hydra_compose import Composition, Program, RefusedOverride, VerlConfiguration

if TYPE_CHECKING:
    from harness.compat.lint.hydra_loader import ConfigValue

# One composition is tried for each of them.
MAX_SIMILAR = 2
NO_REMEDY = "correct or remove the override"


def key_remedy(
    refused: RefusedOverride, composition: Composition, configuration: VerlConfiguration, program: Program
) -> str:
    """What Hydra would take instead of a refused override."""
    return next(_remedies(refused, composition, configuration, program), NO_REMEDY)


def _remedies(
    refused: RefusedOverride, composition: Composition, configuration: VerlConfiguration, program: Program
) -> Iterator[str]:
    key, equals, value = refused.override.text.partition("=")

    def takes(text: str) -> bool:
        changed = replace(refused.override, text=text)
        tried = configuration.compose(program, [changed])
        return not (tried.problem or tried.refused)

    if key.startswith("+") and composition.has(refused.key):
        if takes(f"{refused.key}={value}"):
            yield "remove the `+`, because the key exists"
        return
    if not key.startswith("+") and composition.has(refused.key):
        quoted = f'{key}="{value}"'
        if equals and '"' not in value and takes(quoted):
            yield f"quote the value for Hydra: '{quoted[:120]}'"
        return
    for choice in configuration.choices_with(program, refused.key):
        yield f"add {choice}, whose configuration has this key"
    similar = [other for other in similar_keys(refused.key, composition.values) if takes(f"{other}={value}")]
    if similar:
        yield f"did you mean {' or '.join(similar)}?"
    if equals and _is_open(refused.key, composition) and takes(f"+{refused.key}={value}"):
        yield f"add the key: +{refused.key}={value[:80]}"


def similar_keys(key: str, values: Mapping[str, ConfigValue]) -> list[str]:
    """Existing keys that are similar to `key`, but not the key itself.

    Keys with the same last part come first, because settings are moved more often than renamed.
    """
    others = sorted(other for other in keys_of(values) if other != key and not other.startswith("hydra."))
    parent, _, last = key.rpartition(".")
    same_name = [other for other in others if other.rpartition(".")[2] == last]
    # A moved setting stays in its part of the configuration: the actor's is not the critic's.
    part = key.partition(".")[0]
    moved = [other for other in same_name if other.partition(".")[0] == part]
    beside = [other for other in others if other.rpartition(".")[0] == parent]
    near = difflib.get_close_matches(key, beside, n=MAX_SIMILAR, cutoff=0.85)
    near += difflib.get_close_matches(key, others, n=MAX_SIMILAR, cutoff=0.9)
    found = [*difflib.get_close_matches(key, moved, n=MAX_SIMILAR, cutoff=0.7), *near]
    return list(dict.fromkeys(found))[:MAX_SIMILAR]


def _is_open(key: str, composition: Composition) -> bool:
    """Whether verl can pass on any key of this part: it is a dictionary, and no dataclass is made of it."""
    parent = key.rpartition(".")[0]
    return isinstance(composition.value(parent), Mapping) and not composition.has(f"{parent}._target_")


def keys_of(node: Mapping[str, ConfigValue], prefix: str = "") -> Iterator[str]:
    """The keys that have values."""
    for name, value in node.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from keys_of(value, f"{path}.")
        else:
            yield path
