"""Where CANN is installed on a machine, and its version, from the files that its installer writes.

Exports contain a copy of this module for `docker/cell_check.py`: it needs only Python 3.8 or later.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

# Where CANN is below /usr/local/Ascend: 8.5 and later in `cann`, earlier ones in `ascend-toolkit`.
ROOTS = ("cann/latest", "cann", "ascend-toolkit/latest", "latest")

# How many folders above a library of CANN its installation can be: VERSION/runtime/lib64/libascendcl.so, or
# VERSION/aarch64-linux/lib64/plugin/..
LEVELS = 5
VERSION_LINE = re.compile(r"version\s*=\s*\[?(?:[\w.\-]+:)?([\w.\-]+)", re.IGNORECASE)


def cann_folders(environ: Mapping[str, str], ascend: Path) -> list[Path]:
    """The folders of CANN that exist on this machine: the ones that variables select, then the usual ones.

    ascend: the folder of Ascend's software, usually /usr/local/Ascend.
    """
    homes = (environ.get(name) for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"))
    roots = [Path(home) for home in homes if home] + [ascend / part for part in ROOTS]
    return [root for root in roots if os.path.exists(root)]  # noqa: PTH110 - Path.exists raises without access


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
