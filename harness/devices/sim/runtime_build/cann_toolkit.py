"""A simulated CANN installation: the files from which programs read the version, and an `npu-smi`.

verl reads both before it decides how to sync weights. torch_npu only checks that the folders exist.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.errors import InputError

# Since driver 25.3.RC1, devices share memory between processes, and verl sends weights that way (its
# `check_ipc_version_support`). The simulated device does too (runtime/ipc.c).
DRIVER_VERSION = "25.5.0"
# torch_npu rejects an installation without these folders.
_FOLDERS = ("bin", "compiler", "opp", "runtime")
_VERSION = re.compile(r"\d[\w.+-]*")
_NPU_SMI = """#!/bin/sh
# The npu-smi of the simulated device: it prints the version of the driver, but no table of devices.
case "$*" in
  *board*) printf '\\tSoftware Version               : {driver}\\n' ;;
  *) printf 'npu-smi of the simulated device has no table\\n' >&2; exit 1 ;;
esac
"""

CHECKS_FOLDER, CHECKS_LIBRARY = "checks", "libopapi.so"
"""In the folder of the runtime: the library of operators that succeed and do nothing."""


def toolkit_folder(runtime: Path, cann: str) -> Path:
    """The folder of the toolkit of a CANN version, below the folder of the simulated runtime."""
    if not _VERSION.fullmatch(cann):
        raise InputError(f"{cann!r} is not a CANN version", fix="write it like 8.5.0 or 8.3.RC1")
    return runtime / "toolkit" / cann


def write_toolkit(runtime: Path, cann: str) -> Path:
    """Write the toolkit unless it exists, and return its folder. Several processes may do this at once."""
    target = toolkit_folder(runtime, cann)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(".toolkit-", target.parent) as work:
        for name in (*_FOLDERS, f"{platform.machine()}-linux"):
            (work / name).mkdir()
        info = work / f"{platform.machine()}-linux" / "ascend_toolkit_install.info"
        info.write_text(f"package_name=Ascend-cann-toolkit (simulated)\nversion={cann}\n", encoding="utf-8")
        tool = work / "bin" / "npu-smi"
        tool.write_text(_NPU_SMI.format(driver=DRIVER_VERSION), encoding="utf-8")
        tool.chmod(0o755)
        work.chmod(0o755)
        try:
            work.rename(target)
        except OSError:
            # Another process was faster.
            if not target.is_dir():
                raise
    return target


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """A folder for files that are being written. It is deleted afterwards, unless it was renamed."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def toolkit_environment(runtime: Path, cann: str) -> dict[str, str]:
    """The variables that the `set_env.sh` of a toolkit sets; none if the toolkit was not written."""
    toolkit = toolkit_folder(runtime, cann)
    if not toolkit.is_dir():
        return {}
    return {"ASCEND_HOME_PATH": str(toolkit), "ASCEND_OPP_PATH": str(toolkit / "opp")}


def offer_npu_smi() -> None:
    """Make the toolkit's npu-smi available to this process and its child processes, unless there is one."""
    home = os.environ.get("ASCEND_HOME_PATH")
    if home and not shutil.which("npu-smi"):
        os.environ["PATH"] = os.pathsep.join(filter(None, (os.environ.get("PATH"), str(Path(home) / "bin"))))
