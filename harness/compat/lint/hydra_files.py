"""Hydra's repository of configuration files, which parses each file once for all compositions."""

from __future__ import annotations

import copy
from typing import TypeAlias

from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.config_source import ConfigResult

#: The parsed files, by the folders that are searched and the path in them.
LoadedFiles: TypeAlias = "dict[tuple[tuple[str, ...], str], ConfigResult | None]"


class _Repository(ConfigRepository):
    """Copies of a repository share the parsed files. Each reader gets a copy, because Hydra changes it."""

    def __init__(self, search_path: ConfigSearchPath, loaded: LoadedFiles) -> None:
        super().__init__(config_search_path=search_path)
        self._loaded = loaded

    def __deepcopy__(self, memo: dict[int, object]) -> _Repository:
        copied = copy.copy(self)
        copied.sources = copy.deepcopy(self.sources, memo)
        return copied

    def load_config(self, config_path: str) -> ConfigResult | None:
        key = (tuple(source.full_path() for source in self.sources), config_path)
        if key not in self._loaded:
            self._loaded[key] = super().load_config(config_path)
        return copy.deepcopy(self._loaded[key])


def remembering_repository(search_path: ConfigSearchPath, loaded: LoadedFiles) -> ConfigRepository:
    """A repository that looks into `loaded` before it reads a file, and puts what it reads there."""
    return _Repository(search_path, loaded)
