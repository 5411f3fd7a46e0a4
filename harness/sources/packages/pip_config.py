"""pip's configuration files and environment variables, read without pip.

Locations and precedence follow pip's documentation ("Configuration files", "Precedence / Override order");
`pip config debug` shows the same list.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.errors import InputError, Location
from harness.user_folders import exists, home_folder


def configuration_files(environ: Mapping[str, str], etc: Path, prefix: Path) -> list[Path]:
    """The files that pip reads, lowest priority first. They need not exist."""
    explicit = environ.get("PIP_CONFIG_FILE")
    if explicit == os.devnull:
        return []
    home = home_folder(environ)
    if sys.platform == "darwin":
        shared = [Path("/Library/Application Support/pip/pip.conf")]
        library = home / "Library/Application Support/pip"
        own = library if library.is_dir() else home / ".config/pip"
    else:
        xdg = environ.get("XDG_CONFIG_DIRS") or str(etc / "xdg")
        shared = [Path(folder) / "pip/pip.conf" for folder in xdg.split(os.pathsep) if folder]
        shared.append(etc / "pip.conf")
        own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip"
    # An existing PIP_CONFIG_FILE replaces the user's files.
    user = [] if explicit and exists(explicit) else [home / ".pip/pip.conf", own / "pip.conf"]
    return [*shared, *user, prefix / "pip.conf", *([Path(explicit)] if explicit else [])]


def merged_settings(
    environ: Mapping[str, str], etc: Path, prefix: Path
) -> dict[tuple[str, str], tuple[str, str]]:
    """(section, option) -> the value and its file or variable. Variables are in the section `:env:`.

    InputError if a file cannot be read.
    """
    merged: dict[tuple[str, str], tuple[str, str]] = {}
    for file in configuration_files(environ, etc, prefix):
        for section, name, value in _read(file):
            merged[section, name] = (value, str(file))
    for variable, value in environ.items():
        if variable.startswith("PIP_"):
            name = variable[4:].lower().replace("_", "-")
            merged[":env:", name] = (value, variable)
    return merged


def _read(file: Path) -> Iterator[tuple[str, str, str]]:
    if not exists(file):
        return
    parser = configparser.RawConfigParser()
    try:
        if not file.is_file():
            raise OSError("it is not a file")
        parser.read_string(file.read_text(encoding="utf-8"), source=str(file))
    except (configparser.Error, UnicodeDecodeError, OSError) as error:
        raise InputError(
            "this pip configuration cannot be read",
            where=Location(file),
            why=str(error).replace("\n", " "),
            fix="correct it, or set PIP_CONFIG_FILE to another file",
        ) from error
    for section in parser.sections():
        for name, value in parser.items(section):
            yield section, name.lower().replace("_", "-").removeprefix("--"), value
