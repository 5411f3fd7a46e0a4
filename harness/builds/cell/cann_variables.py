"""What a cell on an NPU takes over from the environment of this host: the variables of CANN's set_env.sh.

Without them torch_npu finds neither its libraries nor the Python packages with which CANN compiles operators.
A container does not need them: its image has a CANN with a set_env.sh of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

# `ASCEND_*` and `HF_*` are among the variables that every program sees. These select communication libraries
# and their links (HCCL, LCCL), ATB's libraries, network interfaces, and how torch_npu submits work. Variables
# with credentials are not among them.
VARIABLES = re.compile(
    r"ATB_\w+|ASDOPS_\w+|TOOLCHAIN_HOME|HCCL_\w+|LCCL_\w+|LCAL_\w+|ACL_\w+|RANK_TABLE_FILE"
    r"|(GLOO|TP|HCCL)_SOCKET_IFNAME|TASK_QUEUE_ENABLE|CPU_AFFINITY_CONF|COMBINED_ENABLE"
    r"|PYTORCH_NPU_ALLOC_CONF|INF_NAN_MODE_(ENABLE|FORCE_DISABLE)|MULTI_STREAM_MEMORY_REUSE|STREAMS_PER_DEVICE"
)
# Lists of folders, of which only those of CANN and of the driver are taken over: others can hold any package.
FOLDER_LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH")
# Variables whose value is a folder of CANN, of its libraries for neural networks (NNAL), or of the driver.
HOMES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ATB_HOME_PATH", "TOOLCHAIN_HOME")
INSTALLED = Path("/usr/local/Ascend")
# CANN's set_env.sh sets them. CANN takes its libraries and its kernels from these folders.
SELECT_TOOLKIT = (
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_HOME_PATH",
    "ASCEND_OPP_PATH",
    "ASCEND_CUSTOM_OPP_PATH",
    "ASCEND_AICPU_PATH",
)


def cann_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that a program on an NPU of this host needs.

    Of `LD_LIBRARY_PATH` and `PYTHONPATH` only folders of CANN, NNAL and the driver are in the result.
    """
    found = {name: value for name, value in environ.items() if VARIABLES.fullmatch(name)}
    roots = list(_roots(environ))
    for name in FOLDER_LISTS:
        folders = [text for text in environ.get(name, "").split(os.pathsep) if _is_below(text, roots)]
        if folders:
            found[name] = os.pathsep.join(dict.fromkeys(folders))
    return found


def selected_toolkit(environ: Mapping[str, str]) -> dict[str, str]:
    """Variable -> the folders that it selects, without symbolic links, for the variables that are set.

    Bytes of a path that are not UTF-8 are escaped, because the result is stored as JSON.
    """
    return {
        name: os.fsencode(os.pathsep.join(map(os.path.realpath, environ[name].split(os.pathsep)))).decode(
            "utf-8", "backslashreplace"
        )
        for name in SELECT_TOOLKIT
        if environ.get(name)
    }


def why_other_toolkit(measured: Mapping[str, str], selected: Mapping[str, str]) -> str:
    """How the toolkit that is selected now differs from the one that was measured, or ""."""
    return "; ".join(
        f"{name} now selects {selected.get(name, 'nothing')} instead of {measured.get(name, 'nothing')}"
        for name in SELECT_TOOLKIT
        if selected.get(name) != measured.get(name)
    )


def _roots(environ: Mapping[str, str]) -> Iterator[Path]:
    for folder in (INSTALLED, *(Path(environ[name]) for name in HOMES if environ.get(name))):
        yield folder
        yield folder.resolve()


def _is_below(text: str, roots: list[Path]) -> bool:
    return Path(text).is_absolute() and any(
        Path(os.path.normpath(form)).is_relative_to(root)
        for form in (text, os.path.realpath(text))
        for root in roots
    )
