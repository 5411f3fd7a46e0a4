"""RMS norms whose results are quantised to int8 (op-plugin's npu_add_rms_norm_quant.md and its relatives)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness.devices.sim.references.norm import npu_rms_norm
from harness.devices.sim.references.precision import refuse, wide
from harness.devices.sim.references.quantization import as_integers, npu_dynamic_quant

_INT8 = 1


def npu_add_rms_norm_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    scales1: torch.Tensor,
    zero_points1: torch.Tensor | None,
    beta: torch.Tensor | None = None,
    scales2: torch.Tensor | None = None,
    zero_points2: torch.Tensor | None = None,
    *,
    axis: int = -1,  # noqa: ARG001 - the operator accepts no other value
    epsilon: float = 1e-6,
    div_mode: bool = True,
    dst_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The RMS norm of x1 + x2, quantised with the first and with the second scales, and the sum.

    Without second scales, the second result is 0; CANN leaves it undefined.
    """
    refuse("npu_add_rms_norm_quant", dst_type=dst_type not in {None, _INT8})
    total = wide(x1) + wide(x2)
    y = _normalised(total, gamma, beta, epsilon)
    first = _quantised(y, scales1, zero_points1, div_mode)
    second = torch.zeros_like(first) if scales2 is None else _quantised(y, scales2, zero_points2, div_mode)
    return first, second, total.to(x1.dtype)


def npu_add_rms_norm_dynamic_quant(
    x1: torch.Tensor,
    x2: torch.Tensor,
    gamma: torch.Tensor,
    *,
    smooth_scale1: torch.Tensor | None = None,
    smooth_scale2: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
    epsilon: float = 1e-6,
    output_mask: Sequence[bool] | None = None,
    y_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The RMS norm of x1 + x2, quantised row by row with each smooth scale: y1, y2, sum, scale1, scale2.

    What output_mask leaves out has one element. Without it, the second result needs both smooth scales.
    """
    refuse("npu_add_rms_norm_dynamic_quant", y_dtype=y_dtype not in {None, _INT8})
    total = wide(x1) + wide(x2)
    y = _normalised(total, gamma, beta, epsilon)
    mask = output_mask or (True, smooth_scale1 is not None and smooth_scale2 is not None)
    (y1, scale1), (y2, scale2) = (
        npu_dynamic_quant(y, smooth_scales=smooth)
        if is_wanted
        else (torch.zeros(1, dtype=torch.int8), torch.zeros(1))
        for is_wanted, smooth in zip(mask, (smooth_scale1, smooth_scale2), strict=True)
    )
    return y1, y2, total.to(x1.dtype), scale1, scale2


def npu_rms_norm_quant(
    x: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    epsilon: float = 1e-6,
    *,
    dst_dtype: int | None = None,
) -> torch.Tensor:
    """The rounded RMS norm * scale + offset."""
    refuse("npu_rms_norm_quant", dst_dtype=dst_dtype not in {None, _INT8})
    y = _normalised(wide(x), gamma.reshape(-1), beta.reshape(-1), epsilon)
    return _quantised(y, scale, offset, div_mode=False)


def _normalised(
    x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    y = npu_rms_norm(x, wide(gamma), epsilon)[0]
    return y if beta is None else y + wide(beta)


def _quantised(
    y: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, div_mode: bool
) -> torch.Tensor:
    scaled = y / wide(scale) if div_mode else y * wide(scale)
    return as_integers((scaled if offset is None else scaled + wide(offset)).round(), torch.int8)
