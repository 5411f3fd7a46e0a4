"""What ProcessGroupHCCL refuses and what it accepts, call by call, on the simulated device.

The refusals are those of torch_npu/csrc/distributed/ProcessGroupHCCL.cpp: each message must be a text of the
installed wheel's library, so that no refusal of our own passes for one of torch_npu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

torch_npu = pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

pytestmark = pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device")

Average = dist.ReduceOp.AVG
REDUCED = (torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.bfloat16)
COPIED = (*REDUCED, torch.int16, torch.uint8, torch.bool, torch.float64)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def library() -> bytes:
    return (Path(torch_npu.__file__).parent / "lib" / "libtorch_npu.so").read_bytes()


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="npu:0")


REFUSED: dict[str, tuple[str, Callable[[], object]]] = {
    "all_reduce of float64": (
        ": Unsupported data type ",
        lambda: dist.all_reduce(ones(2, dtype=torch.float64)),
    ),
    "all_reduce of complex128": (
        ": Unsupported data type ",
        lambda: dist.all_reduce(ones(2, dtype=torch.complex128)),
    ),
    "reduce_scatter of float64": (
        ": Unsupported data type ",
        lambda: dist.reduce_scatter_tensor(ones(2, dtype=torch.float64), ones(2, dtype=torch.float64)),
    ),
    "BAND": (
        "Cannot use ReduceOp.",
        lambda: dist.all_reduce(ones(2, dtype=torch.int32), dist.ReduceOp.BAND),
    ),
    "BOR": ("Cannot use ReduceOp.", lambda: dist.all_reduce(ones(2, dtype=torch.int32), dist.ReduceOp.BOR)),
    "BXOR": ("Cannot use ReduceOp.", lambda: dist.all_reduce(ones(2, dtype=torch.int32), dist.ReduceOp.BXOR)),
    "every other row": ("Tensors must be contiguous", lambda: dist.all_reduce(ones(4, 4)[::2, ::2])),
    "transposed": ("Tensors must be contiguous", lambda: dist.all_reduce(ones(4, 3).t())),
    "all_gather of too large a result": (
        "output tensor size must be equal to world_size times input tensor size",
        lambda: dist.all_gather_into_tensor(ones(3), ones(2)),
    ),
    "all_gather into another dtype": (
        "output tensor must have the same type as input tensor",
        lambda: dist.all_gather_into_tensor(ones(2), ones(2, dtype=torch.float16)),
    ),
    "reduce_scatter of too large an input": (
        "input tensor must be the same size as output size times world size",
        lambda: dist.reduce_scatter_tensor(ones(2), ones(3)),
    ),
    "reduce_scatter of another dtype": (
        "input tensor must be the same type as the output tensor",
        lambda: dist.reduce_scatter_tensor(ones(2), ones(2, dtype=torch.float16)),
    ),
    "a list for more ranks": (
        "Tensor list input to scatter/gather must match number of collective",
        lambda: dist.all_gather([ones(2), ones(2)], ones(2)),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_group_refuses_with_the_message_of_the_wheel(name: str, library: bytes) -> None:
    message, call = REFUSED[name]
    assert message.encode() in library
    with pytest.raises(RuntimeError) as error:
        call()
    assert message in str(error.value)


@pytest.mark.parametrize("dtype", COPIED, ids=str)
def test_what_the_group_copies(dtype: torch.dtype) -> None:
    x = torch.arange(3, device="npu:0").to(dtype)
    parts = [torch.zeros_like(x)]
    dist.broadcast(x, 0)
    dist.all_gather(parts, x)
    assert torch.equal(parts[0].cpu(), torch.arange(3).to(dtype))


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
@pytest.mark.parametrize("reduction", ["SUM", "PRODUCT", "MIN", "MAX"])
def test_what_the_group_reduces(dtype: torch.dtype, reduction: str) -> None:
    x = torch.arange(3, device="npu:0").to(dtype)
    dist.all_reduce(x, getattr(dist.ReduceOp, reduction))
    assert torch.equal(x.cpu(), torch.arange(3).to(dtype))


def test_averages_and_factors_are_of_real_numbers() -> None:
    x = ones(3)
    dist.all_reduce(x, Average)
    assert x.tolist() == [1.0] * 3
    with pytest.raises(RuntimeError, match="can't be cast"):
        dist.all_reduce(ones(3, dtype=torch.int32), Average)


def test_tensors_of_the_host_and_sparse_ones_have_no_backend() -> None:
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))
    with pytest.raises((RuntimeError, NotImplementedError), match=r"not currently supported|Could not run"):
        dist.all_reduce(torch.eye(2).to_sparse().npu())
