"""Matmuls with a collective in one kernel (MC2). They get the name of a communicator of HCCL.

Sources: torch_npu-npu_mm_all_reduce_base.md, torch_npu-npu_mm_reduce_scatter_base.md and
torch_npu-npu_all_gather_base_mm.md of op-plugin, and the expected results of its tests. These compute and
exchange in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.devices.sim.collectives.exchange import Exchange
from harness.devices.sim.references.precision import dtype_of, refuse, wide
from harness.devices.sim.references.quantization import dequantised, factors


class MatmulCollectives:
    """The kernels, on host tensors."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    @property
    def kernels(self) -> Mapping[str, Callable[..., Any]]:
        """Operator name in namespace `npu` -> its kernel."""
        return {
            "npu_all_gather_base_mm": self.all_gather_matmul,
            "npu_mm_all_reduce_base": self.matmul_all_reduce,
            "npu_mm_reduce_scatter_base": self.matmul_reduce_scatter,
        }

    def matmul_all_reduce(
        self,
        x1: torch.Tensor,
        x2: torch.Tensor,
        hcom: str,
        *,
        reduce_op: str = "sum",
        bias: torch.Tensor | None = None,
        antiquant_scale: torch.Tensor | None = None,
        antiquant_offset: torch.Tensor | None = None,
        x3: torch.Tensor | None = None,
        dequant_scale: torch.Tensor | None = None,
        pertoken_scale: torch.Tensor | None = None,
        y_dtype: int | torch.dtype | None = None,
        comm_turn: int = 0,
        comm_mode: str | None = None,  # noqa: ARG002 - how the numbers travel
        **others: object,
    ) -> torch.Tensor:
        """The sum of x1 @ x2 + bias + x3 over all ranks, (..., m, n). x2 may be quantised, or both."""
        _only_sums("npu_mm_all_reduce_base", reduce_op, comm_turn, others)
        if antiquant_scale is not None:
            product = wide(x1) @ dequantised(x2, antiquant_scale, antiquant_offset)
        else:
            product = _product("npu_mm_all_reduce_base", x1, x2, None, pertoken_scale, dequant_scale, bias)
            bias = None
        for added in (bias, x3):
            product = product if added is None else product + wide(added)
        dtype = _result_type(x1, dequant_scale, y_dtype)
        return self._exchange.collective(hcom, "HcclAllReduce", product, product.shape, product.numel()).to(
            dtype
        )

    def matmul_reduce_scatter(
        self,
        this: torch.Tensor,
        x2: torch.Tensor,
        hcom: str,
        world_size: int,
        *,
        reduce_op: str = "sum",
        bias: torch.Tensor | None = None,
        x1_scale: torch.Tensor | None = None,
        x2_scale: torch.Tensor | None = None,
        comm_turn: int = 0,
        output_dtype: int | torch.dtype | None = None,
        comm_mode: str | None = None,  # noqa: ARG002
        **others: object,
    ) -> torch.Tensor:
        """This rank's rows (m / world_size, n) of the sum of this @ x2 + bias over all ranks."""
        _only_sums("npu_mm_reduce_scatter_base", reduce_op, comm_turn, others)
        product = _product("npu_mm_reduce_scatter_base", this, x2, x1_scale, None, x2_scale, bias)
        rows = product.shape[0] // world_size
        shape = torch.Size((rows, product.shape[1]))
        found = self._exchange.collective(hcom, "HcclReduceScatter", product, shape, shape.numel())
        return found.to(_result_type(this, x2_scale, output_dtype))

    def all_gather_matmul(
        self,
        this: torch.Tensor,
        x2: torch.Tensor,
        hcom: str,
        world_size: int,
        *,
        bias: torch.Tensor | None = None,
        x1_scale: torch.Tensor | None = None,
        x2_scale: torch.Tensor | None = None,
        gather_index: int = 0,
        gather_output: bool = True,
        comm_turn: int = 0,
        output_dtype: int | torch.dtype | None = None,
        comm_mode: str | None = None,  # noqa: ARG002
        **others: object,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of all ranks (m * world_size, k) @ x2 + bias, and these rows, empty if not asked for."""
        refuse("npu_all_gather_base_mm", gather_index=gather_index)
        _only_sums("npu_all_gather_base_mm", "sum", comm_turn, others)
        rows = self._exchange.all_gathered(hcom, this, world_size)
        scales = None if x1_scale is None else self._exchange.all_gathered(hcom, x1_scale, world_size)
        product = _product("npu_all_gather_base_mm", rows, x2, scales, None, x2_scale, bias)
        result = product.to(_result_type(this, x2_scale, output_dtype))
        return result, rows if gather_output else rows.new_empty(0)


def _product(
    operator: str,
    x1: torch.Tensor,
    x2: torch.Tensor,
    x1_scale: torch.Tensor | None,
    row_scale: torch.Tensor | None,
    x2_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """x1 @ x2 + bias in float32. int8 @ int8 is exact, then scaled by row and by column."""
    if x1.is_floating_point():
        product = wide(x1) @ wide(x2)
        return product if bias is None else product + wide(bias)
    refuse(
        operator, **{f"{x1.dtype} and {x2.dtype}": x2.dtype is not torch.int8, "no scale": x2_scale is None}
    )
    assert x2_scale is not None
    exact = x1.double() @ x2.double()
    scaled = (exact if bias is None else exact + bias.double()).float() * factors(x2_scale).flatten()
    for scale in (x1_scale, row_scale):
        if scale is not None:
            scaled = scaled * scale.reshape(*x1.shape[:-1], 1)
    return scaled


def _result_type(
    x1: torch.Tensor, scale: torch.Tensor | None, wanted: int | torch.dtype | None
) -> torch.dtype:
    if wanted is not None:
        return dtype_of(wanted)
    if x1.is_floating_point():
        return x1.dtype
    return torch.bfloat16 if scale is not None and scale.dtype is torch.bfloat16 else torch.float16


def _only_sums(operator: str, reduce_op: str, comm_turn: int, others: Mapping[str, object]) -> None:
    given = {name: value is not None and value not in (0, False) for name, value in others.items()}
    refuse(operator, comm_turn=comm_turn, **{f"reduce_op {reduce_op}": reduce_op != "sum"}, **given)
