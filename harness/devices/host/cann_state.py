"""The CANN that a program started here would use, and what does not fit in its installation."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.cell_program.cann_version import cann_folders, installed_version
from harness.devices.host.soc import release_line

#: Variables of CANN's set_env.sh with the folder of the toolkit, and that of NNAL's with the folder of ATB.
TOOLKIT_VARIABLES, ATB_VARIABLE = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"), "ATB_HOME_PATH"
#: Of ATB, below the folder of Ascend's software, and below ATB_HOME_PATH (.../latest/atb/cxx_abi_1).
ATB_RECORD, ATB_RECORD_OF_HOME = Path("nnal/atb/latest/version.info"), Path("../../version.info")
_ATB_VERSION = re.compile(r"^\s*Ascend-cann-atb\s*:\s*(\S+)", re.MULTILINE)
_SOURCE = "run the set_env.sh of the CANN that you want, in a new shell"


@dataclass(frozen=True, kw_only=True)
class CannState:
    """version: of CANN, "" if there is none. problems: what does not fit, each with what to do."""

    version: str = ""
    problems: tuple[tuple[str, str], ...] = ()


def inspect_cann(environ: Mapping[str, str], ascend: Path) -> CannState:
    """Look at the variables and at the folder of Ascend's software, usually /usr/local/Ascend."""
    version = next(filter(None, map(installed_version, cann_folders(environ, ascend))), "")
    return CannState(version=version, problems=tuple(_problems(environ, ascend, version)))


def _problems(environ: Mapping[str, str], ascend: Path, version: str) -> Iterator[tuple[str, str]]:
    selected = {name: Path(environ[name]) for name in (*TOOLKIT_VARIABLES, ATB_VARIABLE) if environ.get(name)}
    for name, folder in dict(selected).items():
        if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises without access
            yield f"{name} is {folder}, which is no folder here", _SOURCE
            del selected[name]
    versions = {
        name: found
        for name in TOOLKIT_VARIABLES
        if name in selected and (found := installed_version(selected[name]))
    }
    if len(set(versions.values())) > 1:
        yield ", ".join(f"{name} selects CANN {found}" for name, found in versions.items()), _SOURCE
    atb = _atb_version(environ, ascend)
    if version and atb and release_line(atb) != release_line(version):
        yield f"NNAL is of {atb}, CANN of {version}", "install the NNAL of the same release as CANN"


def _atb_version(environ: Mapping[str, str], ascend: Path) -> str:
    home = environ.get(ATB_VARIABLE)
    for file in (*([Path(home) / ATB_RECORD_OF_HOME] if home else []), ascend / ATB_RECORD):
        try:
            found = _ATB_VERSION.search(file.read_text("utf-8", errors="replace"))
        except OSError:
            continue
        if found:
            return found.group(1)
    return ""
