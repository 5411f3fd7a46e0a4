"""What a program reports about the device on which it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from harness.evidence import FACTS_VARIABLE, DeviceFacts, Runtime, read_device_facts, runtime_kind


def device_facts(device: str, environ: Mapping[str, str] = os.environ) -> DeviceFacts:
    """Facts about `device` ("cpu", "npu:0", ...).

    They include what the launcher of the simulated device published in the environment variable
    `FACTS_VARIABLE`. An NPU counts as simulated when the launcher published that, or when no CANN runtime
    drives the NPU. A published claim that the NPU is real is not trusted.
    """
    kind = device.split(":", maxsplit=1)[0]
    published = _published(environ)
    runtime = runtime_kind() if kind == "npu" else Runtime.NONE
    return replace(
        published,
        device=device,
        kind=kind,
        simulated=published.simulated or (kind == "npu" and runtime is not Runtime.CANN),
        runtime=runtime,
        soc=published.soc or (_soc(device) if kind == "npu" else ""),
        torch=package_version("torch"),
        torch_npu=package_version("torch-npu"),
    )


def half_format(torch: Any) -> str:
    """The 16-bit format in which this NPU computes: `float16` where torch_npu says that it has no bfloat16.

    That is so on Atlas 300I cards with 310P (vllm-ascend, tutorial "Atlas 300I": only float16).
    """
    supported = getattr(getattr(torch, "npu", None), "is_bf16_supported", None)
    return "float16" if supported is not None and not supported() else "bfloat16"


def _published(environ: Mapping[str, str]) -> DeviceFacts:
    try:
        facts = json.loads(environ.get(FACTS_VARIABLE, "{}"))
    except ValueError:
        return DeviceFacts()
    return read_device_facts(facts) if isinstance(facts, dict) else DeviceFacts()


def package_version(distribution: str) -> str:
    """Version of an installed package, "" when it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def _soc(device: str) -> str:
    # torch is installed in cells only, and this module is also imported on the host.
    import torch

    npu = getattr(torch, "npu", None)
    return str(npu.get_device_name(device)) if npu is not None and npu.is_available() else ""
