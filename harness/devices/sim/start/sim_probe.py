"""Detects the simulated CANN runtime and collects the facts of its device. Needs no torch."""

from __future__ import annotations

import ctypes
import json
import os

from harness.cell_program.torch_device import package_version
from harness.evidence import (
    FACTS_VARIABLE,
    DeviceFacts,
    Runtime,
    device_count,
    runtime_kind,
    runtime_library,
)
from harness.serialisation import json_object


def is_simulated(library: ctypes.CDLL | None = None) -> bool:
    """Whether the CANN runtime of this process is the simulated one; False when there is no runtime."""
    return runtime_kind(library) is Runtime.SIMULATED


def device_facts() -> DeviceFacts:
    """Facts about the device of this process. `soc` and `cann` are those of the runtime, "" without one."""
    library = runtime_library()
    return DeviceFacts(
        device="npu:0",
        kind="npu",
        simulated=is_simulated(library),
        runtime=runtime_kind(library),
        soc=_soc(library),
        cann=_cann(library),
        torch=package_version("torch"),
        torch_npu=package_version("torch-npu"),
        count=device_count(library) if library is not None else 0,
    )


def publish_facts() -> None:
    """Store the facts in the environment variable that measuring programs read."""
    os.environ[FACTS_VARIABLE] = json.dumps(json_object(device_facts()))


def _soc(library: ctypes.CDLL | None) -> str:
    if library is None:
        return ""
    library.aclrtGetSocName.restype = ctypes.c_char_p
    return (library.aclrtGetSocName() or b"").decode("utf-8", "replace")


def _cann(library: ctypes.CDLL | None) -> str:
    if library is None or not hasattr(library, "aclsysGetCANNVersion"):
        return ""
    # The struct aclCANNPackageVersion has 512 bytes and begins with char version[128].
    text = ctypes.create_string_buffer(512)
    return text.value.decode("utf-8", "replace") if library.aclsysGetCANNVersion(0, text) == 0 else ""
