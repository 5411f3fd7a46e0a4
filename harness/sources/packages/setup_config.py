"""The setup.cfg of a source tree."""

from __future__ import annotations

import configparser

from harness.errors import InputError, Location
from harness.sources.tree import Tree

CONFIG = "setup.cfg"


def read_setup_config(tree: Tree) -> configparser.ConfigParser:
    """The setup.cfg of a tree, empty if it has none; InputError if it is no configuration file."""
    config = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    try:
        config.read_string(tree.read(CONFIG).decode("utf-8", "replace") if tree.mode(CONFIG) else "")
    except configparser.Error as error:
        where = Location(f"{tree.label}:{CONFIG}")
        raise InputError("this file is not a configuration file", where=where, why=str(error)) from error
    return config


def listed(text: str) -> tuple[str, ...]:
    """The elements of a list in setup.cfg: one a line, or separated by commas."""
    parts = text.splitlines() if "\n" in text.strip() else text.split(",")
    return tuple(part.strip() for part in parts if part.strip())
