"""Whose clock a training's times are: the machine, and how crowded it was. In-cell module."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from harness.digest import digest_json

_PROCESSORS = Path("/proc/cpuinfo")


def host_facts() -> dict[str, Any]:
    """`id`: a digest that only runs on this machine share, without its name in it; `load`: runnable processes
    per processor in the last minute."""
    processors = os.cpu_count() or 1
    return {
        "id": digest_json([platform.node(), platform.machine(), _model(), processors])[:16],
        "load": round(os.getloadavg()[0] / processors, 3),
    }


def _model() -> str:
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
