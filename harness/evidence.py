"""What a result on an NPU proves. Only here is it called hardware, and only where a CANN runtime shows it.

Runs inside cells too, and needs no torch.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """What a program reports of the device it ran on.

    device: as torch names it ("cpu", "npu:0"). kind: its first part. runtime: what the process's CANN runtime
    turned out to be. available: False when torch was asked for the device and does not see it. count: devices
    that the runtime lets the process see.
    """

    device: str = ""
    kind: str = ""
    simulated: bool = False
    runtime: Runtime = Runtime.NONE
    soc: str = ""
    cann: str = ""
    torch: str = ""
    torch_npu: str = ""
    count: int = 0
    available: bool = True

    @property
    def title(self) -> str:
        """The device in words, for tables: `simulated Ascend910B3`, `npu:0`."""
        return f"{'simulated ' if self.simulated else ''}{self.soc or self.device}".strip()


def read_device_facts(stored: Mapping[str, Any]) -> DeviceFacts:
    """Device facts from JSON, also from the environment probe's; what is missing there proves nothing."""
    runtime = stored.get("runtime")
    return DeviceFacts(
        device=str(stored.get("device", "")),
        kind=str(stored.get("kind", "")),
        simulated=bool(stored.get("simulated", False)),
        runtime=Runtime(runtime) if runtime in set(Runtime) else Runtime.NONE,
        soc=str(stored.get("soc", "")),
        cann=str(stored.get("cann", "")),
        torch=str(stored.get("torch", "")),
        torch_npu=str(stored.get("torch_npu", "")),
        count=int(stored.get("count", 0)),
        available=bool(stored.get("available", True)),
    )


def evidence_of(facts: DeviceFacts) -> Evidence:
    """What an outcome with these facts of its device proves.

    Hardware has to be shown: an NPU that is not known to be driven by CANN proves no more than a CPU.
    """
    if facts.kind != "npu":
        return Evidence.SIMULATED if facts.simulated else Evidence.CPU
    if facts.simulated or facts.runtime is Runtime.SIMULATED:
        return Evidence.SIMULATED
    shown = facts.runtime is Runtime.CANN and facts.available
    return Evidence.HARDWARE if shown else Evidence.CPU
