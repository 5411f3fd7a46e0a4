"""Replaces folders of this machine by names such as `{cache}`, because reports are read on other machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class KnownFolders:
    """Folders and the names that a report shows instead of them, for example `{cache}`."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._names = {path: f"{{{name}}}" for name, path in folders.items() if len(path) > 1}
        # The longest first, because the state folder may be inside the checkout.
        paths = sorted(self._names, key=len, reverse=True)
        pattern = "|".join(map(re.escape, paths))
        self._paths = re.compile(rf"(?:{pattern})(?![\w.-])") if paths else None

    def replace_paths(self, value: Any) -> Any:
        """`value` with the known folders replaced by their names in all strings, at any depth."""
        if isinstance(value, str):
            if self._paths is None or "/" not in value:
                return value
            return self._paths.sub(lambda found: self._names[found[0]], value)
        if isinstance(value, Mapping):
            return {name: self.replace_paths(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.replace_paths(item) for item in value)
        return value
