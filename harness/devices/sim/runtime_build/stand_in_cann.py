"""A stand-in for an installed CANN: its layouts, with the simulated runtime as its libraries.

`npu-matrix rehearse` puts it at /usr/local/Ascend of a mount namespace. Its libraries are installed when the
torch_npu of a cell is known, because they export what that torch_npu imports. The Python processes of a cell
load `sitecustomize.py` from CANN's folder on PYTHONPATH, which installs the kernels of the simulated device.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from harness.devices.sim.runtime_build.runtime_library import MANIFEST
from harness.errors import InfrastructureError, InputError, Location
from harness.package import data_folder

#: The folder of CANN, its libraries and ATB on an NPU host.
ASCEND = Path("/usr/local/Ascend")
#: Marks the folder of a stand-in.
STAND_IN = "npu-matrix-stand-in.json"
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(.*)")
#: The first release line that installs to `cann-VERSION`. The Dockerfiles of the repository
#: Ascend/cann-container-image (cann/VERSION-*/Dockerfile, ASCEND_TOOLKIT_HOME) show both layouts.
_NEW_LAYOUT = (8, 5)
_FOLDERS = ("bin", "compiler", "opp/built-in", "runtime", "lib64", "python/site-packages", "tools/aml/lib64")
_SITECUSTOMIZE = """\
# Written by npu-matrix rehearse: this is no CANN. Processes on the stand-in load the simulated device.
import os

for name, value in {variables!r}.items():
    os.environ.setdefault(name, value)
try:
    from harness.devices.sim.start import after_torch_npu
except ImportError:
    pass
else:
    after_torch_npu.install()
"""
#: The variables that the set_env.sh of CANN and of ATB set; from the section ENV of those Dockerfiles.
_SET_ENV = """\
# Written by npu-matrix rehearse: this is no CANN, but the simulated runtime in its place.
export ASCEND_TOOLKIT_HOME={home}
export LD_LIBRARY_PATH={ascend}/driver/lib64/common:{ascend}/driver/lib64/driver:$LD_LIBRARY_PATH
export LD_LIBRARY_PATH={ascend}/driver/lib64:$LD_LIBRARY_PATH
export LD_LIBRARY_PATH=$ASCEND_TOOLKIT_HOME/lib64:$ASCEND_TOOLKIT_HOME/tools/aml/lib64:$LD_LIBRARY_PATH
export PYTHONPATH=$ASCEND_TOOLKIT_HOME/python/site-packages:$PYTHONPATH
export PATH=$ASCEND_TOOLKIT_HOME/bin:$PATH
export ASCEND_AICPU_PATH=$ASCEND_TOOLKIT_HOME
export ASCEND_OPP_PATH=$ASCEND_TOOLKIT_HOME/opp
export TOOLCHAIN_HOME=$ASCEND_TOOLKIT_HOME/toolkit
export ASCEND_HOME_PATH=$ASCEND_TOOLKIT_HOME
"""
_SET_ENV_ATB = """\
export ATB_HOME_PATH={ascend}/nnal/atb/latest/atb/cxx_abi_1
export LD_LIBRARY_PATH=$ATB_HOME_PATH/lib:$LD_LIBRARY_PATH
export ATB_STREAM_SYNC_EVERY_KERNEL_ENABLE=0
export ATB_OPSRUNNER_KERNEL_CACHE_LOCAL_COUNT=1
export ATB_WORKSPACE_MEM_ALLOC_ALG_TYPE=1
export LCCL_DETERMINISTIC=0
"""


def toolkit_home(cann: str) -> Path:
    """Where the installer of this version puts CANN, below /usr/local/Ascend; InputError for no version."""
    found = _RELEASE.fullmatch(cann)
    if found is None or not re.fullmatch(r"[\w.+-]+", cann):
        raise InputError(f"{cann!r} is not a CANN version", fix="write it like 8.5.0 or 8.3.RC1")
    line = (int(found.group(1)), int(found.group(2)))
    if line < _NEW_LAYOUT or (line == _NEW_LAYOUT and "alpha" in found.group(4).lower()):
        return Path("ascend-toolkit") / cann
    return Path(f"cann-{cann}")


def write_cann(ascend: Path, cann: str, soc: str, cards: int) -> tuple[Path, ...]:
    """Write a CANN below `ascend`, which becomes /usr/local/Ascend; returns its set_env.sh files there.

    soc: the name that the runtime reports, such as Ascend910B3. cards: how many devices it counts.
    """
    place = toolkit_home(cann)
    home = ascend / place
    for name in (*_FOLDERS, f"{platform.machine()}-linux"):
        (home / name).mkdir(parents=True, exist_ok=True)
    info = home / f"{platform.machine()}-linux" / "ascend_toolkit_install.info"
    info.write_text(f"package_name=Ascend-cann-toolkit (simulated)\nversion={cann}\n", "utf-8")
    marker = {"simulated": True, "cann": cann, "soc": soc, "cards": cards}
    (home / STAND_IN).write_text(json.dumps(marker), "utf-8")
    _write_python(home / "python/site-packages", cann, soc, cards)
    toolkits = ascend / "ascend-toolkit"
    toolkits.mkdir(exist_ok=True)
    _link(toolkits / "latest", Path(os.path.relpath(home, toolkits)))
    if place.parts[0] != toolkits.name:
        _link(ascend / "cann", Path(place.name))
    selected = ASCEND / ("ascend-toolkit/latest" if place.parts[0] == toolkits.name else place)
    (toolkits / "set_env.sh").write_text(_SET_ENV.format(home=selected, ascend=ASCEND), "utf-8")
    (ascend / "nnal/atb/latest/atb/cxx_abi_1/lib").mkdir(parents=True, exist_ok=True)
    (ascend / "nnal/atb/set_env.sh").write_text(_SET_ENV_ATB.format(ascend=ASCEND), "utf-8")
    return ASCEND / "ascend-toolkit/set_env.sh", ASCEND / "nnal/atb/set_env.sh"


def library_folder(environ: Mapping[str, str]) -> Path:
    """The folder with the libraries of the stand-in's CANN that the variables select, without links.

    InfrastructureError if they select no stand-in.
    """
    home = Path(environ.get("ASCEND_TOOLKIT_HOME") or "/nonexistent")
    if not (home / STAND_IN).is_file():
        raise InfrastructureError(
            "the CANN of this host is not a stand-in",
            where=Location(home),
            why="a rehearsal uses the simulated runtime only where `npu-matrix rehearse` wrote a CANN",
            fix="use `npu-matrix rehearse`, or unset NPU_MATRIX_REHEARSAL",
        )
    return home.resolve() / "lib64"


def install_runtime(runtime: Path, environ: Mapping[str, str]) -> None:
    """Copy the libraries of the simulated runtime into the stand-in's CANN that the variables select.

    InfrastructureError if they select no stand-in: a CANN is never overwritten. Also if the stand-in has the
    libraries for another torch_npu.
    """
    target = library_folder(environ)
    manifest = target / MANIFEST
    if manifest.is_file():
        if manifest.read_bytes() == (runtime / MANIFEST).read_bytes():
            return
        raise InfrastructureError(
            "the stand-in has the libraries for another torch_npu",
            where=Location(manifest),
            fix="rehearse cells with different torch_npu in separate runs: npu-matrix rehearse does",
        )
    for file in sorted(runtime.iterdir()):
        if file.is_symlink() or (file.is_file() and file.name != MANIFEST):
            shutil.copy2(file, target / file.name, follow_symlinks=False)
    # Last, so that an interrupted copy is repeated.
    shutil.copy2(runtime / MANIFEST, manifest)


def _write_python(folder: Path, cann: str, soc: str, cards: int) -> None:
    """The packages of CANN's Python folder: `acl`, and the start of the simulated device."""
    variables = {
        "NPU_SIM_SOC": soc,
        "NPU_SIM_CANN": cann,
        "NPU_SIM_COUNT": str(cards),
        # See `simulated_environment`: equal results between runs, and a faster submission.
        "OMP_NUM_THREADS": "1",
        "TASK_QUEUE_ENABLE": "0",
    }
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(variables=variables), "utf-8")
    source = data_folder("devices/sim/start/pyacl/acl")
    (folder / "acl").mkdir(exist_ok=True)
    for file in source.glob("*.py"):
        shutil.copyfile(file, folder / "acl" / file.name)


def _link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
