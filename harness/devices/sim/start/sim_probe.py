"""Whether this process's CANN runtime is the simulated one, and the facts of its device. Needs no torch."""

from __future__ import annotations

import ctypes
import json
import os
from importlib import metadata
from typing import Any

from harness.evidence import FACTS_VARIABLE, Runtime, device_count, runtime_kind, runtime_library


def is_simulated(library: ctypes.CDLL | None = None) -> bool:
    """Whether the CANN runtime of this process carries the sentinel; False when there is no runtime."""
    return runtime_kind(library) is Runtime.SIMULATED


def device_facts(device: str = "npu:0") -> dict[str, Any]:
    """JSON facts of the device this process computes on.

    `simulated` is True only with the sentinel. `soc` and `cann` are what the runtime says, "" without one.
    """
    library = runtime_library()
    return {
        "device": device,
        "simulated": is_simulated(library),
        "soc": _soc(library),
        "cann": _cann(library),
        "torch": _version("torch"),
        "torch_npu": _version("torch-npu"),
        "count": device_count(library) if library is not None else 0,
    }


def publish_facts(device: str = "npu:0") -> dict[str, Any]:
    """Put the facts where measuring programs look for them, the environment, and return them."""
    facts = device_facts(device)
    os.environ[FACTS_VARIABLE] = json.dumps(facts)
    return facts


def _soc(library: ctypes.CDLL | None) -> str:
    if library is None:
        return ""
    library.aclrtGetSocName.restype = ctypes.c_char_p
    return (library.aclrtGetSocName() or b"").decode("utf-8", "replace")


def _cann(library: ctypes.CDLL | None) -> str:
    if library is None or not hasattr(library, "aclsysGetCANNVersion"):
        return ""
    # aclCANNPackageVersion: char version[128] first, 512 bytes in all.
    text = ctypes.create_string_buffer(512)
    return text.value.decode("utf-8", "replace") if library.aclsysGetCANNVersion(0, text) == 0 else ""


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
