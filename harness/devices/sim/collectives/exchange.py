"""Collectives of the simulated HCCL on host tensors, for operators that get the name of a communicator."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

_FLOAT32, _SUM = 4, 0
"""Numbers of HcclDataType and HcclReduceOp (hccl_types.h)."""
_WITHOUT_OPERATION = {"HcclAllGather"}


class Exchange:
    """Sends float32, which has every number of the types these operators take, in the current stream.

    runtime: the simulated CANN runtime; npu: `torch.npu`. Errors: RuntimeError for a name that no
    communicator has, and for what HCCL returns. NotImplementedError while the stream is captured.
    """

    def __init__(self, runtime: Any, npu: Any) -> None:
        self._runtime = runtime
        self._npu = npu
        runtime.npu_sim_communicator.restype = ctypes.c_void_p

    def all_gathered(self, hcom: str, values: torch.Tensor, ranks: int) -> torch.Tensor:
        """The values of all ranks, one after another along the first dimension."""
        shape = torch.Size((ranks * values.shape[0], *values.shape[1:]))
        found = self.collective(hcom, "HcclAllGather", values.float(), shape, values.numel())
        return found.to(values.dtype)

    def collective(
        self, hcom: str, function: str, values: torch.Tensor, shape: torch.Size, count: int
    ) -> torch.Tensor:
        """What a gathering or summing collective makes of the values, in a new tensor of this shape."""
        source, target = values.float().contiguous(), torch.empty(shape)
        operation = () if function in _WITHOUT_OPERATION else (_SUM,)
        ends = (ctypes.c_void_p(one.data_ptr()) for one in (source, target))
        self._call(hcom, function, *ends, ctypes.c_uint64(count), _FLOAT32, *operation)
        return target

    def all_to_all(
        self, hcom: str, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int]
    ) -> torch.Tensor:
        """Rows of a matrix: `sent[r]` of them, in order, go to rank r, and `received[r]` come from it."""
        source, width = rows.float().contiguous(), rows.shape[1]
        target = torch.empty(sum(received), width)
        # A matrix without rows has no address.
        starts = (one if one.numel() else torch.empty(1) for one in (source, target))
        outgoing, incoming = (ctypes.c_void_p(one.data_ptr()) for one in starts)
        self._call(
            *(hcom, "HcclAlltoAllV"),
            *(outgoing, *_counts_and_starts(sent, width), _FLOAT32),
            *(incoming, *_counts_and_starts(received, width), _FLOAT32),
        )
        return target

    def size(self, hcom: str) -> int:
        """The number of ranks of a communicator."""
        size = ctypes.c_uint32()
        self._runtime.HcclGetRankSize(ctypes.c_void_p(self._communicator(hcom)), ctypes.byref(size))
        return size.value

    def _communicator(self, hcom: str) -> int:
        communicator: int | None = self._runtime.npu_sim_communicator(hcom.encode())
        if not communicator:
            raise RuntimeError(f"HCCL has no communicator {hcom!r}")
        return communicator

    def _call(self, hcom: str, function: str, *arguments: Any) -> None:
        communicator = ctypes.c_void_p(self._communicator(hcom))
        stream = ctypes.c_void_p(self._npu.current_stream().npu_stream)
        if self._runtime.npu_sim_captured(stream):
            raise NotImplementedError(
                "not simulated: torch.npu.graph with an operator that has a collective in it"
            )
        error = getattr(self._runtime, function)(*arguments, communicator, stream)
        # The tensors must live until the stream has done the work.
        if error or (error := self._runtime.npu_sim_drain(stream)):
            raise RuntimeError(f"{function} failed, error code is {error}")


def _counts_and_starts(rows: Sequence[int], width: int) -> tuple[Any, Any]:
    """Numbers of elements for each rank, and where they start."""
    counts = [number * width for number in rows]
    starts = [sum(counts[:rank]) for rank in range(len(counts))]
    array = ctypes.c_uint64 * len(counts)
    return array(*counts), array(*starts)
