"""Decides the evidence of an outcome from the device it ran on. No other module may call it hardware.

Runs inside cells as well as on the host, and does not need torch.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.outcome import Evidence, Tier

FACTS_VARIABLE = "NPU_MATRIX_DEVICE_FACTS"
"""The variable with JSON device facts that the launcher of the simulated device sets for its programs."""

RUNTIME_LIBRARY = "libascendcl.so"
SENTINELS = ("npu_sim_sentinel", "fakecann_is_fake")
"""Symbols that only simulated CANN runtimes export."""


class Runtime(str, enum.Enum):
    """The kind of CANN runtime in a process."""

    CANN = "cann"
    SIMULATED = "simulated"
    NONE = "none"


def runtime_library() -> ctypes.CDLL | None:
    """The CANN runtime that the dynamic loader finds for this process; None if there is none."""
    try:
        return ctypes.CDLL(RUNTIME_LIBRARY)
    except OSError:
        return None


def runtime_kind(library: ctypes.CDLL | None = None) -> Runtime:
    """The kind of the runtime `library`, by default of the runtime of this process.

    It is `CANN` only if the library has no sentinel and counts at least one device. The stub libraries of the
    toolkit, and a CANN on a machine without NPUs, count none. The name of torch's device proves nothing:
    another backend can register itself as `npu`.
    """
    library = library or runtime_library()
    if library is None:
        return Runtime.NONE
    if any(hasattr(library, symbol) for symbol in SENTINELS):
        return Runtime.SIMULATED
    return Runtime.CANN if device_count(library) else Runtime.NONE


def device_count(library: ctypes.CDLL) -> int:
    """How many devices this process can see, according to the runtime; 0 if the call fails."""
    if not hasattr(library, "aclrtGetDeviceCount"):
        return 0
    number = ctypes.c_uint32(0)
    return number.value if library.aclrtGetDeviceCount(ctypes.byref(number)) == 0 else 0


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """The device that a program ran on, as the program reports it.

    device: torch's name for it ("cpu", "npu:0"). kind: the first part of that name. runtime: the kind of CANN
    runtime in the process. available: False if torch could not find the device. count: the number of devices
    that the process can see.
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
    """Device facts from JSON, without pydantic, which cells lack. A missing member never proves hardware."""
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


#: The strongest evidence that each kind of device can give.
DEVICE_EVIDENCE = {"sim": Evidence.SIMULATED, "npu": Evidence.HARDWARE, "cpu": Evidence.CPU}


def strongest_evidence(tier: Tier, facets: Mapping[str, object]) -> Evidence:
    """The strongest evidence that an outcome of a task with these facet values may have.

    That of the device in the facets, `cpu` if the check reads no device, `static` for a check of that tier. A
    rehearsal on a stand-in host gives what a simulated device gives.
    """
    if tier is Tier.STATIC:
        return Evidence.STATIC
    device = facets.get("device")
    if isinstance(device, Mapping) and device.get("rehearsed"):
        return Evidence.SIMULATED
    kind = device.get("kind") if isinstance(device, Mapping) else None
    # A plan that was read from a ledger can have anything there.
    return DEVICE_EVIDENCE.get(str(kind), Evidence.CPU)


def evidence_of(facts: DeviceFacts) -> Evidence:
    """The evidence of an outcome that was obtained on this device.

    Hardware must be proved: an NPU without a CANN runtime that counts devices is evidence `cpu` only.
    """
    if facts.kind != "npu":
        return Evidence.SIMULATED if facts.simulated else Evidence.CPU
    if facts.simulated or facts.runtime is Runtime.SIMULATED:
        return Evidence.SIMULATED
    proved = facts.runtime is Runtime.CANN and facts.available
    return Evidence.HARDWARE if proved else Evidence.CPU
