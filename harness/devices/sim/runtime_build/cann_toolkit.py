"""The files of a CANN installation that programs look at: its version, and `npu-smi`. Nothing of them works.

verl reads both before it chooses how weights travel; torch_npu looks whether the folders are there.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from pathlib import Path

from harness.errors import InputError

# Older than 25.3.RC1, the first driver whose devices share memory between processes: these do not.
DRIVER_VERSION = "25.2.0"
# torch_npu refuses an installation without them.
_FOLDERS = ("bin", "compiler", "opp", "runtime")
_VERSION = re.compile(r"\d[\w.+-]*")
_NPU_SMI = """#!/bin/sh
# Stands in for npu-smi on the simulated device: the driver's version, and no table of devices.
case "$*" in
  *board*) printf '\\tSoftware Version               : {driver}\\n' ;;
  *) printf 'npu-smi of the simulated device has no table\\n' >&2; exit 1 ;;
esac
"""


def toolkit_folder(runtime: Path, cann: str) -> Path:
    """Where the toolkit of a CANN version is, below the simulated runtime's folder."""
    if not _VERSION.fullmatch(cann):
        raise InputError(f"{cann!r} is no CANN version", fix="write it as 8.5.0 or 8.3.RC1")
    return runtime / "toolkit" / cann


def write_toolkit(runtime: Path, cann: str) -> Path:
    """Write it once; safe with several writers at once."""
    place = toolkit_folder(runtime, cann)
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".toolkit-", dir=place.parent))
    try:
        for name in (*_FOLDERS, f"{platform.machine()}-linux"):
            (work / name).mkdir()
        info = work / f"{platform.machine()}-linux" / "ascend_toolkit_install.info"
        info.write_text(f"package_name=Ascend-cann-toolkit (simulated)\nversion={cann}\n", encoding="utf-8")
        tool = work / "bin" / "npu-smi"
        tool.write_text(_NPU_SMI.format(driver=DRIVER_VERSION), encoding="utf-8")
        tool.chmod(0o755)
        work.chmod(0o755)
        try:
            work.rename(place)
        except OSError:
            # Somebody else was first.
            if not place.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place


def toolkit_environment(runtime: Path, cann: str) -> dict[str, str]:
    """What `set_env.sh` of such an installation sets; nothing where none was written."""
    place = toolkit_folder(runtime, cann)
    if not place.is_dir():
        return {}
    return {"ASCEND_HOME_PATH": str(place), "ASCEND_OPP_PATH": str(place / "opp")}


def offer_npu_smi() -> None:
    """Let this process and those it starts find the toolkit's npu-smi, where there is no real one."""
    home = os.environ.get("ASCEND_HOME_PATH")
    if home and not shutil.which("npu-smi"):
        os.environ["PATH"] = os.pathsep.join(filter(None, (os.environ.get("PATH"), str(Path(home) / "bin"))))
