"""How a training gets hold of its device. In-cell module."""

from __future__ import annotations

import sys

from harness.errors import InfrastructureError


def open_device(device: str) -> None:
    """Make `device` usable in this process; InfrastructureError when it is not there.

    On the CPU torch_npu is kept out: verl takes its kernels for log-probabilities wherever it imports.
    """
    if device == "cpu":
        sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]
        return
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InfrastructureError(
            f"device {device} cannot be used: {error}", fix="run `npu-matrix doctor` on this host"
        ) from error
