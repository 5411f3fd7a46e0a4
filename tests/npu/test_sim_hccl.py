"""The hccl backend of the simulated device: collectives, DDP and FSDP equal one process on the CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.overlay")

from harness.devices.sim.faultspec import FaultSpec  # noqa: E402 - needs the guard above

SIMULATION = overlay.installed()
pytestmark = pytest.mark.skipif(SIMULATION is None, reason="only on the simulated device")
slow = pytest.mark.skipif(
    os.environ.get("NPU_MATRIX_TWIN") != "1", reason="takes a minute; set NPU_MATRIX_TWIN=1"
)

PROGRAM = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
from torch import nn

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("hccl" if sys.argv[2] == "plain" else "cpu:gloo,npu:hccl")
NPU = torch.device("npu", 0)
torch.npu.set_device(0)
found = {"backend": dist.get_backend()}

def full(value, *shape, dtype=torch.float32):
    return torch.full(shape, value, dtype=dtype, device=NPU)

x = full(RANK + 1.0, 4); dist.all_reduce(x); found["all_reduce"] = x.tolist()
x = full(RANK + 1.0, 2); dist.all_reduce(x, op=dist.ReduceOp.AVG); found["average"] = x.tolist()
x = full(RANK + 1.0, 2, dtype=torch.bfloat16); dist.all_reduce(x); found["bfloat16"] = x.tolist()
x = torch.tensor(RANK + 1.0, device=NPU); dist.all_reduce(x); found["scalar"] = x.item()
work = dist.all_reduce(y := full(1.0, 2), async_op=True); work.wait(); found["async"] = y.tolist()
x = full(float(RANK), 2); dist.broadcast(x, 0); found["broadcast"] = x.tolist()
parts = [full(-1.0, 2) for _ in range(WORLD)]; dist.all_gather(parts, full(float(RANK), 2)); found["all_gather"] = [p.tolist() for p in parts]
s = [torch.zeros((), device=NPU) for _ in range(WORLD)]; dist.all_gather(s, torch.tensor(float(RANK), device=NPU)); found["gather_scalars"] = [p.item() for p in s]
out = full(0.0, 2 * WORLD); dist.all_gather_into_tensor(out, full(float(RANK), 2)); found["into_tensor"] = out.tolist()
out = full(0.0, 2); dist.reduce_scatter_tensor(out, torch.arange(2.0 * WORLD, device=NPU)); found["reduce_scatter"] = out.tolist()
out = full(0.0, 2); dist.reduce_scatter_tensor(out, torch.arange(2.0 * WORLD, device=NPU) + RANK, op=dist.ReduceOp.AVG); found["scatter_average"] = out.tolist()
out = full(0.0, 2); dist.reduce_scatter(out, list((torch.arange(2.0 * WORLD, device=NPU) * (RANK + 1)).chunk(WORLD)), op=dist.ReduceOp.MAX); found["scatter_largest"] = out.tolist()
out = full(0.0, WORLD); dist.all_to_all_single(out, torch.arange(float(WORLD), device=NPU) + 10 * RANK); found["all_to_all"] = out.tolist()
objects = [None] * WORLD; dist.all_gather_object(objects, {"rank": RANK}); found["objects"] = objects
dist.barrier()

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

def batch(device):
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(8, 8, generator=g), torch.randn(8, 4, generator=g)
    mine = slice(RANK * 8 // WORLD, (RANK + 1) * 8 // WORLD)
    return (x, y) if device == "cpu" else (x[mine].to(NPU), y[mine].to(NPU))

def train(m, device):
    x, y = batch(device)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad(); loss = ((m(x) - y) ** 2).mean(); loss.backward(); optimizer.step()
        losses.append(loss.detach())
    losses = torch.stack(losses)
    if device != "cpu":
        dist.all_reduce(losses); losses = losses / WORLD
    return losses.tolist()

found["cpu"] = train(model(), "cpu")
if sys.argv[3] == "train":
    found["ddp"] = train(nn.parallel.DistributedDataParallel(model().to(NPU)), "npu")
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.device_mesh import init_device_mesh
    m, mesh = model().to(NPU), init_device_mesh("npu", (WORLD,))
    for layer in m:
        if isinstance(layer, nn.Linear): fully_shard(layer, mesh=mesh)
    found["fsdp2"] = train(fully_shard(m, mesh=mesh), "npu")
    found["fsdp1"] = train(FullyShardedDataParallel(model(), device_id=0), "npu")
dist.destroy_process_group()
if RANK == 0:
    json.dump(found, open(sys.argv[1], "w"))
"""


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_collectives_can_be_struck() -> None:
    def gathered() -> list[list[float]]:
        parts = [torch.zeros(2, device="npu:0")]
        dist.all_gather(parts, torch.ones(2, device="npu:0"))
        return [part.tolist() for part in parts]

    x = torch.ones(2, device="npu:0")
    with SIMULATION.faults.injected(FaultSpec(op="allreduce_", kind="scale", factor=3.0)) as (fault,):
        dist.all_reduce(x)
        dist.broadcast(x, 0)
    assert (x.tolist(), fault.hits) == ([3.0, 3.0], 1)
    with SIMULATION.faults.injected(FaultSpec(op="c10d::allgather_", kind="zero", output=-1)):
        assert gathered() == [[0.0, 0.0]]
    broken = FaultSpec(op="broadcast_", kind="raise")
    with SIMULATION.faults.injected(broken), pytest.raises(RuntimeError, match=r"EZ9999.*broadcast_"):
        dist.broadcast(x, 0)
    assert gathered() == [[1.0, 1.0]]


def run_ranks(tmp_path: Path, world: int, group: str, what: str) -> dict[str, object]:
    script, result = tmp_path / "ranks.py", tmp_path / "found.json"
    script.write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "harness.devices.sim.launch", str(script), str(result), group, what],
            env={**common, "RANK": str(rank), "LOCAL_RANK": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in ranks]
    finally:
        # One that waits for another that is gone waits for ever.
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0] * world, outputs[0][-3000:]
    found: dict[str, object] = json.loads(result.read_text())
    return found


@pytest.mark.parametrize(
    ("world", "group", "what"),
    [
        (1, "plain", "train"),
        (2, "mixed", "train"),
        (4, "plain", "collectives"),
        pytest.param(4, "mixed", "train", marks=slow),
    ],
)
def test_collectives_and_training(tmp_path: Path, world: int, group: str, what: str) -> None:
    found = run_ranks(tmp_path, world, group, what)
    total = world * (world + 1) / 2
    assert found["all_reduce"] == [total] * 4
    assert found["average"] == [total / world] * 2
    assert found["bfloat16"] == [total] * 2
    assert found["scalar"] == total
    assert found["async"] == [float(world)] * 2
    assert found["broadcast"] == [0.0, 0.0]
    assert found["all_gather"] == [[float(rank)] * 2 for rank in range(world)]
    assert found["gather_scalars"] == [float(rank) for rank in range(world)]
    assert found["into_tensor"] == [float(rank) for rank in range(world) for _ in range(2)]
    assert found["reduce_scatter"] == [0.0, float(world)]
    assert found["scatter_average"] == [(world - 1) / 2, 1 + (world - 1) / 2]
    assert found["scatter_largest"] == [0.0, float(world)]
    assert found["all_to_all"] == [10.0 * rank for rank in range(world)]
    assert found["objects"] == [{"rank": rank} for rank in range(world)]
    if what == "train":
        for name in ("ddp", "fsdp1", "fsdp2"):
            assert found[name] == pytest.approx(found["cpu"], rel=1e-5), name
