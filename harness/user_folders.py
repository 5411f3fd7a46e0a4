"""The user's own folders, in which tools keep settings, data and caches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: Variable of the XDG Base Directory Specification -> the folder below the home folder that is its default.
XDG_DEFAULTS = {
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}


def home_folder(environ: Mapping[str, str]) -> Path:
    """HOME, else what the system has for this user; `~` if it has nothing, for example in a container."""
    return Path(environ.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - Path.home() can raise


def xdg_folder(variable: str, environ: Mapping[str, str]) -> Path:
    """The folder of an XDG variable. As specified, a value that is not an absolute path is ignored."""
    folder = environ.get(variable, "")
    return Path(folder) if folder.startswith("/") else home_folder(environ) / XDG_DEFAULTS[variable]


def exists(path: Path | str) -> bool:
    """Whether the path exists, as far as this user can see.

    `Path.exists` raises an error instead, for example if a folder of another user cannot be searched.
    """
    return os.path.exists(path)  # noqa: PTH110
