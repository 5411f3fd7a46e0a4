"""Compare a job's overrides with the Hydra configuration in the wheel of its verl version."""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from harness.compat.lint.job_settings import JobSettings
from harness.errors import InputError, Location

CONFIG_FOLDER = "verl/trainer/config"
DEFAULT_CONFIG = "ppo_trainer"
# The entry modules that use this configuration. Other entry modules have their own.
ENTRY_MODULES = ("verl.trainer.main_ppo",)
MAX_CONFIG_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class UnknownKey:
    """An override that Hydra rejects. `similar`: existing keys with a similar name."""

    key: str
    similar: tuple[str, ...] = ()


def read_config(wheel: Path, name: str = DEFAULT_CONFIG) -> Mapping[str, object] | None:
    """The composed configuration `name` from verl's wheel; None when the wheel does not have it.

    InputError when the wheel cannot be read.
    """
    member = f"{CONFIG_FOLDER}/_generated_{name}.yaml"
    try:
        with zipfile.ZipFile(wheel) as archive:
            if member not in archive.namelist():
                return None
            if archive.getinfo(member).file_size > MAX_CONFIG_BYTES:
                raise InputError(
                    f"verl's configuration is larger than {MAX_CONFIG_BYTES >> 20} MiB", where=Location(wheel)
                )
            data = yaml.safe_load(archive.read(member))
    except (zipfile.BadZipFile, OSError, EOFError, yaml.YAMLError) as error:
        raise InputError("verl's wheel cannot be read", where=Location(wheel), why=str(error)) from error
    return data if isinstance(data, dict) else None


def config_name(job: JobSettings) -> str:
    """The configuration that the job uses: named by the job, or implied by its model engine."""
    engine = job.overrides.get("model_engine")
    if job.config:
        return job.config.removesuffix(".yaml")
    return f"ppo_{engine.text}_trainer" if engine and engine.text != "dp" else DEFAULT_CONFIG


def find_unknown_keys(job: JobSettings, config: Mapping[str, object]) -> list[UnknownKey]:
    """Overrides that Hydra rejects. Selections of groups (`model_engine=...`, `a@b=...`) are not checked."""
    known = sorted(_keys(config))
    found = []
    for key in job.overrides:
        if "@" in key or "/" in key or ("." not in key and key not in config):
            continue
        exists = _exists(config, key)
        if not exists and key not in job.added:
            found.append(UnknownKey(key=key, similar=_similar(key, known)))
    absent = [key for key in sorted(job.removed) if not _exists(config, key)]
    return [*found, *(UnknownKey(key=key, similar=_similar(key, known)) for key in absent)]


def _exists(node: object, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True


def _keys(node: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        path = f"{prefix}{name}"
        yield path
        if isinstance(value, dict):
            yield from _keys(value, f"{path}.")


def _similar(key: str, known: list[str]) -> tuple[str, ...]:
    """Up to two existing keys that are similar to `key`.

    Keys with the same last part come first, because settings are moved more often than renamed.
    """
    last = key.rsplit(".", 1)[-1]
    same_name = [other for other in known if other.rsplit(".", 1)[-1] == last]
    near = difflib.get_close_matches(key, known, n=2, cutoff=0.85)
    return tuple(dict.fromkeys([*difflib.get_close_matches(key, same_name, n=2, cutoff=0.0), *near]))[:2]
