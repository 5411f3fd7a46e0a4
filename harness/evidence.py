"""What a result on an NPU proves. Only here is it called hardware, and only where a CANN runtime shows it.

Runs inside cells too, and needs no torch.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Mapping
from typing import Any

from harness.outcome import Evidence

FACTS_VARIABLE = "NPU_MATRIX_DEVICE_FACTS"
"""JSON that the simulated device's launcher leaves for the programs it starts."""

RUNTIME_LIBRARY = "libascendcl.so"
SENTINELS = ("npu_sim_sentinel", "fakecann_is_fake")
"""Symbols that only simulated CANN runtimes export."""


class Runtime(str, enum.Enum):
    """What stands under a process's NPU."""

    CANN = "cann"
    SIMULATED = "simulated"
    NONE = "none"


def runtime_library() -> ctypes.CDLL | None:
    """The CANN runtime the loader finds for this process; None when there is none."""
    try:
        return ctypes.CDLL(RUNTIME_LIBRARY)
    except OSError:
        return None


def runtime_kind(library: ctypes.CDLL | None = None) -> Runtime:
    """What `library`, or else the runtime of this process, shows itself to be.

    `CANN` needs a runtime without a sentinel that counts a device: the toolkit's linking stubs, and a CANN
    on a machine without NPUs, have none. Without one there is no NPU, whatever torch calls `npu`: a backend
    of another make can take that name.
    """
    library = library or runtime_library()
    if library is None:
        return Runtime.NONE
    if any(hasattr(library, symbol) for symbol in SENTINELS):
        return Runtime.SIMULATED
    return Runtime.CANN if device_count(library) else Runtime.NONE


def device_count(library: ctypes.CDLL) -> int:
    """How many devices the runtime lets this process see; 0 when it cannot say."""
    if not hasattr(library, "aclrtGetDeviceCount"):
        return 0
    number = ctypes.c_uint32(0)
    return number.value if library.aclrtGetDeviceCount(ctypes.byref(number)) == 0 else 0


def evidence_of(facts: Mapping[str, Any]) -> Evidence:
    """What an outcome with these facts of its device proves.

    facts: `kind` ("npu", "cpu", ...), `runtime` (a `Runtime`), `simulated`, and `available` where it was
    asked. Hardware has to be shown: an NPU of which they do not say that CANN drives it proves no more than
    a CPU.
    """
    if facts.get("kind") != "npu":
        return Evidence.SIMULATED if facts.get("simulated") else Evidence.CPU
    if facts.get("simulated") or facts.get("runtime") == Runtime.SIMULATED:
        return Evidence.SIMULATED
    shown = facts.get("runtime") == Runtime.CANN and facts.get("available", True)
    return Evidence.HARDWARE if shown else Evidence.CPU
