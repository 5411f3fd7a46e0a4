"""The device a program runs on, and what evidence it can give."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from harness.outcome import Evidence

FACTS_VARIABLE = "NPU_MATRIX_DEVICE_FACTS"
"""JSON that the simulated device's launcher leaves for the program it starts."""

RUNTIME_LIBRARY = "libascendcl.so"
SENTINELS = ("npu_sim_sentinel", "fakecann_is_fake")
"""Symbols that only simulated CANN runtimes export."""


def device_facts(device: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Facts about `device` ("cpu", "npu:0", ...): name, simulated or not, SoC, versions of torch and
    torch_npu.

    An NPU is simulated when its launcher says so or there is no CANN runtime without a sentinel symbol; a
    launcher's "not simulated" is not believed over a sentinel.
    """
    kind = device.split(":", maxsplit=1)[0]
    told = _told(environ)
    simulated = bool(told.get("simulated")) or (kind == "npu" and not runtime_is_real())
    facts = {
        **told,
        "device": device,
        "kind": kind,
        "simulated": simulated,
        "torch": _version("torch"),
        "torch_npu": _version("torch-npu"),
    }
    if kind == "npu" and not facts.get("soc"):
        facts["soc"] = _soc(device)
    return facts


def evidence_of(facts: Mapping[str, Any]) -> Evidence:
    """What an outcome with these facts proves: only an NPU without a sentinel is hardware."""
    if facts.get("simulated"):
        return Evidence.SIMULATED
    return Evidence.HARDWARE if facts.get("kind") == "npu" else Evidence.CPU


def runtime_is_real() -> bool:
    """Whether this process has a CANN runtime without a sentinel.

    Without any runtime there is no NPU, whatever torch calls `npu`: a backend of another make can take that
    name.
    """
    try:
        runtime = ctypes.CDLL(RUNTIME_LIBRARY)
    except OSError:
        return False
    return not any(hasattr(runtime, symbol) for symbol in SENTINELS)


def _told(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        told = json.loads(environ.get(FACTS_VARIABLE, "{}"))
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _soc(device: str) -> str:
    import torch

    npu = getattr(torch, "npu", None)
    return str(npu.get_device_name(device)) if npu is not None and npu.is_available() else ""
