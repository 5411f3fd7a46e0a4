"""The version of a CANN installation, from the files that its installer writes."""

from __future__ import annotations

import re
from pathlib import Path

# How many folders above a library of CANN its installation can be: VERSION/runtime/lib64/libascendcl.so, or
# VERSION/aarch64-linux/lib64/plugin/..
LEVELS = 5
VERSION_LINE = re.compile(r"version\s*=\s*\[?(?:[\w.\-]+:)?([\w.\-]+)", re.IGNORECASE)


def installed_version(root: Path) -> str:
    """The version of the installation in `root`, such as 8.5.0 or 8.3.RC1; "" if its files do not tell."""
    for file in sorted(root.glob("*/ascend_toolkit_install.info")) + sorted(root.glob("version.cfg")):
        if version := version_in(file):
            return version
    return ""


def version_of_library(library: Path) -> str:
    """The version of the CANN installation to which a library belongs; "" if it belongs to none."""
    folders = [*list(library.parents)[:LEVELS], *list(library.resolve().parents)[:LEVELS]]
    return next(filter(None, map(installed_version, dict.fromkeys(folders))), "")


def version_in(file: Path) -> str:
    """The version in a line like `Version=25.5.2` or `..._version=[7.6.0.1.220:8.0.0]` (here 8.0.0)."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = VERSION_LINE.search(text)
    return match.group(1) if match else ""
