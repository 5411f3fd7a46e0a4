"""Prepares the device of a training. In-cell module."""

from __future__ import annotations

import sys

from harness.errors import InfrastructureError


def open_device(device: str) -> None:
    """Prepare this process for `device`. Raises InfrastructureError when the device cannot be used.

    On the CPU, torch_npu is hidden: verl would use its kernels for log-probabilities if it could import it.
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
