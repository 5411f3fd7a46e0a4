"""Does every override exist in the configuration of that very version of verl, as its wheel carries it?"""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.compat.lint.job_settings import JobSettings
from harness.errors import InputError, Location

CONFIG_FOLDER = "verl/trainer/config"
DEFAULT_CONFIG = "ppo_trainer"
# Programs whose configuration this is; recipes bring their own.
ENTRY_MODULES = ("verl.trainer.main_ppo",)
LARGEST_CONFIG = 4 << 20


@dataclass(frozen=True, kw_only=True)
class UnknownKey:
    """An override Hydra refuses: `similar` are keys that exist and look like it."""

    key: str
    similar: tuple[str, ...] = ()


def read_config(wheel: Path, name: str = DEFAULT_CONFIG) -> Mapping[str, Any] | None:
    """verl's composed configuration `name` as its wheel carries it, or None when it has none of that name.

    InputError when the wheel cannot be read.
    """
    member = f"{CONFIG_FOLDER}/_generated_{name}.yaml"
    try:
        with zipfile.ZipFile(wheel) as archive:
            if member not in archive.namelist():
                return None
            if archive.getinfo(member).file_size > LARGEST_CONFIG:
                raise InputError("verl's configuration is larger than any known", where=Location(wheel))
            data = yaml.safe_load(archive.read(member))
    except (zipfile.BadZipFile, OSError, EOFError, yaml.YAMLError) as error:
        raise InputError("verl's wheel cannot be read", where=Location(wheel), why=str(error)) from error
    return data if isinstance(data, dict) else None


def config_name(recipe: JobSettings) -> str:
    """The configuration a launch composes; Megatron jobs name theirs, or choose it as model engine."""
    engine = recipe.overrides.get("model_engine")
    if recipe.config:
        return recipe.config.removesuffix(".yaml")
    return f"ppo_{engine.text}_trainer" if engine and engine.text != "dp" else DEFAULT_CONFIG


def find_unknown_keys(recipe: JobSettings, config: Mapping[str, Any]) -> list[UnknownKey]:
    """Overrides that Hydra would refuse; choices of groups (`model_engine=...`, `a@b=...`) are left out."""
    known = sorted(_keys(config))
    found = []
    for key in recipe.overrides:
        if "@" in key or "/" in key or ("." not in key and key not in config):
            continue
        exists = _exists(config, key)
        if not exists and key not in recipe.added:
            found.append(UnknownKey(key=key, similar=_similar(key, known)))
    gone = [key for key in sorted(recipe.removed) if not _exists(config, key)]
    return [*found, *(UnknownKey(key=key, similar=_similar(key, known)) for key in gone)]


def _exists(config: Any, key: str) -> bool:
    node = config
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True


def _keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        path = f"{prefix}{name}"
        yield path
        if isinstance(value, dict):
            yield from _keys(value, f"{path}.")


def _similar(key: str, known: list[str]) -> tuple[str, ...]:
    """Keys of the same last part first: settings move more often than they are renamed."""
    last = key.rsplit(".", 1)[-1]
    moved = [other for other in known if other.rsplit(".", 1)[-1] == last]
    near = difflib.get_close_matches(key, known, n=2, cutoff=0.85)
    return tuple(dict.fromkeys([*difflib.get_close_matches(key, moved, n=2, cutoff=0.0), *near]))[:2]
