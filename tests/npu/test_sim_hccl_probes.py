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


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_averages(dtype: torch.dtype) -> None:
    x = ones(3, dtype=dtype)
    dist.all_reduce(x, Average)
    assert x.tolist() == [1] * 3


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("divisor", [1, 2, 3, -7])
def test_integers_that_a_number_divides_in_place_are_truncated(dtype: torch.dtype, divisor: int) -> None:
    x = torch.randint(-100, 100, (50,), dtype=dtype)
    expected = (x.double() / divisor).trunc()
    assert torch.equal(x.npu().div_(divisor).cpu().double(), expected)
    with pytest.raises(RuntimeError, match="can't be cast"):
        x.npu().div_(torch.full((50,), divisor, device="npu:0"))


def _sent_to_self(sent: list[torch.Tensor], received: list[torch.Tensor]) -> None:
    receivers = [dist.P2POp(dist.irecv, one, 0) for one in received]
    for work in dist.batch_isend_irecv([*receivers, *(dist.P2POp(dist.isend, one, 0) for one in sent)]):
        work.wait()


def test_a_rank_may_send_to_itself_in_a_batch() -> None:
    sent = [torch.randn(3, 5), torch.randn(7)]
    received = [ones(3, 5), ones(7)]
    _sent_to_self([one.npu() for one in sent], received)
    assert all(torch.equal(one.cpu(), other) for one, other in zip(received, sent, strict=True))


@pytest.mark.parametrize("sizes", [((2,), ()), ((), (2,)), ((2,), (3,)), ((2, 3), (3, 2))], ids=str)
def test_what_a_rank_sends_to_itself_needs_a_receiver_of_its_size(
    sizes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    with pytest.raises(RuntimeError, match="HcclBatchSendRecv, error code is 1"):
        _sent_to_self(*([ones(size) for size in one] for one in sizes))


def test_tensors_of_the_host_and_sparse_ones_have_no_backend() -> None:
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2))
    with pytest.raises((RuntimeError, NotImplementedError), match=r"not currently supported|Could not run"):
        dist.all_reduce(torch.eye(2).to_sparse().npu())
