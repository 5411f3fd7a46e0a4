"""The device a program runs on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from harness.evidence import FACTS_VARIABLE, Runtime, runtime_kind


def device_facts(device: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Facts about `device` ("cpu", "npu:0", ...): name, simulated or not, what its runtime shows itself to
    be, SoC, versions of torch and torch_npu.

    An NPU is simulated when its launcher says so or nothing shows that CANN drives it; a launcher's "not
    simulated" is not believed over that. What the facts prove: `harness.evidence.evidence_of`.
    """
    kind = device.split(":", maxsplit=1)[0]
    told = _told(environ)
    runtime = runtime_kind() if kind == "npu" else Runtime.NONE
    simulated = bool(told.get("simulated")) or (kind == "npu" and runtime is not Runtime.CANN)
    facts = {
        **told,
        "device": device,
        "kind": kind,
        "simulated": simulated,
        "runtime": runtime.value,
        "torch": _version("torch"),
        "torch_npu": _version("torch-npu"),
    }
    if kind == "npu" and not facts.get("soc"):
        facts["soc"] = _soc(device)
    return facts


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
