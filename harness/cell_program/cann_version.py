"""Where CANN is installed on a machine, and its version, from the files that its installer writes.

Exports contain a copy of this module for `docker/cell_check.py`: it needs only Python 3.8 or later.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

# Where CANN is below /usr/local/Ascend: 8.5 and later in `cann`, earlier ones in `ascend-toolkit`; `nnae` is
# the package without compilers for training and inference.
ROOTS = ("cann/latest", "cann", "ascend-toolkit/latest", "latest", "nnae/latest")
# An installation that was moved or unpacked may lack the links above.
VERSION_FOLDERS = ("cann-*", "ascend-toolkit/[0-9]*")
# Where the installer records the folder of CANN. A user who is not root installs to ~/Ascend.
INSTALL_RECORDS = ("/etc/Ascend/ascend_cann_install.info", "~/Ascend/ascend_cann_install.info")
RECORDED_PATH = re.compile(r"^\s*Toolkit_InstallPath\s*=\s*(/\S+)", re.IGNORECASE | re.MULTILINE)
# Files with the version, in the folder of CANN: of the toolkit, of nnae, of all, of the runtime since 9.0.
VERSION_FILES = (
    "*/ascend_toolkit_install.info",
    "ascend_nnae_install.info",
    "*/ascend_nnae_install.info",
    "version.cfg",
    "share/info/runtime/version.info",
)

# How many folders above a library of CANN its installation can be: VERSION/runtime/lib64/libascendcl.so, or
# VERSION/aarch64-linux/lib64/plugin/..
LEVELS = 5
VERSION_LINE = re.compile(r"version\s*=\s*\[?(?:[\w.\-]+:)?([\w.\-]+)", re.IGNORECASE)


def cann_folders(environ: Mapping[str, str], ascend: Path) -> list[Path]:
    """The folders of CANN that exist on this machine: the ones that variables select, then the usual ones.

    ascend: the folder of Ascend's software, usually /usr/local/Ascend. The records of the installer and the
    folder of this user are looked at after it, if `environ` has the home folder.
    """
    homes = [environ.get(name) for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")]
    user = environ.get("HOME")
    places = [ascend, Path(user) / "Ascend"] if user else [ascend]
    roots = [Path(home) for home in homes if home] + [ascend / part for part in ROOTS]
    roots += recorded_folders(user) if user else []
    roots += [place / part for place in places[1:] for part in ROOTS]
    # Without links nothing says which version is used: the newest one.
    roots += [found for place in places for part in VERSION_FOLDERS for found in _newest_first(place, part)]
    return [root for root in dict.fromkeys(roots) if os.path.exists(root)]  # noqa: PTH110 - Path.exists raises without access


def _newest_first(place: Path, pattern: str) -> list[Path]:
    try:
        return sorted(place.glob(pattern), key=_release_order, reverse=True)
    except OSError:
        return []


def _release_order(folder: Path) -> tuple[list[int], str]:
    """Sorts 8.5.0 after 8.5.0.RC1, and 10.0.0 after 9.1.0."""
    numbers, _, rest = folder.name.lower().replace("-", ".").partition("rc")
    numbers, _, alpha = numbers.partition("alpha")
    found = [int(text) for text in re.findall(r"\d+", numbers)]
    # A release comes after its candidates, and these after what has `alpha` only.
    return [*(found + [0] * 4)[:4], 0 if alpha else 1 if rest else 2], rest


def recorded_folders(home: str) -> list[Path]:
    """The folders in which the installer of CANN says that it is."""
    found = []
    for record in INSTALL_RECORDS:
        try:
            text = Path(record.replace("~", home, 1)).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found += [Path(match.group(1)) for match in RECORDED_PATH.finditer(text)]
    return found


def installed_version(root: Path) -> str:
    """The version of the installation in `root`, such as 8.5.0 or 8.3.RC1; "" if its files do not tell."""
    for pattern in VERSION_FILES:
        for file in sorted(root.glob(pattern)):
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
