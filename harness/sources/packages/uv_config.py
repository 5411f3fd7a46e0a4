"""The indexes and the network settings in uv's own settings files, as environment variables.

uv runs with the settings that we write for it, not with the user's: these can also have overrides,
constraints, metadata and other settings that change what a cell resolves to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tomllib

from harness.errors import InputError, Location
from harness.user_folders import exists, xdg_folder

#: Setting in uv.toml -> environment variable.
VARIABLES = {
    "allow-insecure-host": "UV_INSECURE_HOST",
    "cache-dir": "UV_CACHE_DIR",
    "concurrent-downloads": "UV_CONCURRENT_DOWNLOADS",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "index-strategy": "UV_INDEX_STRATEGY",
    "index-url": "UV_INDEX_URL",
    "keyring-provider": "UV_KEYRING_PROVIDER",
    "link-mode": "UV_LINK_MODE",
    "native-tls": "UV_NATIVE_TLS",
    "offline": "UV_OFFLINE",
    "system-certs": "UV_SYSTEM_CERTS",
}
#: Variables of which one replaces the others.
RIVALS = (("UV_DEFAULT_INDEX", "UV_INDEX_URL"), ("UV_INDEX", "UV_EXTRA_INDEX_URL"))


def uv_config_variables(environ: Mapping[str, str], etc: Path = Path("/etc")) -> dict[str, str]:
    """The variables that stand for the user's uv.toml, else that of the system; variables of `environ` win.

    InputError for a file that cannot be read.
    """
    for file in uv_config_files(environ, etc):
        if exists(file) and file.is_file():
            found = dict(_variables(_read(file)))
            return {name: value for name, value in found.items() if not _is_set(name, environ)}
    return {}


def _is_set(name: str, environ: Mapping[str, str]) -> bool:
    names = next((rivals for rivals in RIVALS if name in rivals), (name,))
    return any(environ.get(one) for one in names)


def uv_config_files(environ: Mapping[str, str], etc: Path) -> Iterator[Path]:
    """The settings files of which uv reads the first one that exists."""
    if explicit := environ.get("UV_CONFIG_FILE"):
        yield Path(explicit)
        return
    if environ.get("UV_NO_CONFIG"):
        return
    yield xdg_folder("XDG_CONFIG_HOME", environ) / "uv" / "uv.toml"
    for folder in (environ.get("XDG_CONFIG_DIRS") or str(etc / "xdg")).split(":"):
        yield Path(folder) / "uv" / "uv.toml"
    yield etc / "uv" / "uv.toml"


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError("uv's settings file cannot be read", where=Location(file), why=str(error)) from error


def _variables(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    pip = settings.get("pip")
    for name, value in {**(pip if isinstance(pip, dict) else {}), **settings}.items():
        if name in VARIABLES:
            yield VARIABLES[name], _text(value, "," if name == "find-links" else " ")
    indexes = settings.get("index")
    entries = [one for one in indexes if isinstance(one, dict)] if isinstance(indexes, list) else []
    named = [
        (bool(one.get("default")), f"{one['name']}={one['url']}" if one.get("name") else str(one["url"]))
        for one in entries
        if isinstance(one.get("url"), str) and not one.get("explicit")
    ]
    yield from (("UV_DEFAULT_INDEX", index) for default, index in named if default)
    if others := [index for default, index in named if not default]:
        yield "UV_INDEX", " ".join(others)


def _text(value: object, separator: str) -> str:
    if isinstance(value, list):
        return separator.join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
