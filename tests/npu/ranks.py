"""One rank of a process group: runs every collective, then DDP, FSDP1 and FSDP2 on the device.

    python -m harness.devices.sim.start.sim_launch ranks.py STORE RESULT GROUP WHAT

STORE: the rendezvous file. GROUP: `plain` or `mixed` backend. WHAT: `collectives`, or `train` for both. The first
rank writes its results as JSON to RESULT.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

STEPS, ROWS = 3, 8


class Perceptron(nn.Module):
    """A model whose operations all have an error bound (`stochastic_arithmetic`)."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.up(x)))


def model() -> Perceptron:
    torch.manual_seed(0)
    return Perceptron()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(ROWS, 8, generator=generator), torch.randn(ROWS, 4, generator=generator)


def train(
    trained: nn.Module, x: torch.Tensor, y: torch.Tensor, averaged: Callable[[torch.Tensor], torch.Tensor]
) -> list[float]:
    """The loss of each step. averaged: averages a loss over all ranks."""
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        difference = trained(x) - y
        loss = (difference * difference).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(averaged(loss.detach())))
    return losses


def collectives(rank: int, world: int, npu: torch.device) -> dict[str, object]:
    def full(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype, device=npu)

    def reduced(x: torch.Tensor, **options: object) -> object:
        dist.all_reduce(x, **options)
        return x.tolist()

    results = {
        "all_reduce": reduced(full(rank + 1.0, 4)),
        "average": reduced(full(rank + 1.0, 2), op=dist.ReduceOp.AVG),
        "bfloat16": reduced(full(rank + 1.0, 2, dtype=torch.bfloat16)),
        "scalar": reduced(torch.tensor(rank + 1.0, device=npu)),
    }
    y = full(1.0, 2)
    dist.all_reduce(y, async_op=True).wait()
    results["async"] = y.tolist()
    x = full(float(rank), 2)
    dist.broadcast(x, 0)
    results["broadcast"] = x.tolist()
    parts = [full(-1.0, 2) for _ in range(world)]
    dist.all_gather(parts, full(float(rank), 2))
    results["all_gather"] = [part.tolist() for part in parts]
    scalars = [torch.zeros((), device=npu) for _ in range(world)]
    dist.all_gather(scalars, torch.tensor(float(rank), device=npu))
    results["gather_scalars"] = [scalar.item() for scalar in scalars]
    out = full(0.0, 2 * world)
    dist.all_gather_into_tensor(out, full(float(rank), 2))
    results["into_tensor"] = out.tolist()
    out, counted = full(0.0, 2), torch.arange(2.0 * world, device=npu)
    dist.reduce_scatter_tensor(out, counted.clone())
    results["reduce_scatter"] = out.tolist()
    dist.reduce_scatter_tensor(out, counted + rank, op=dist.ReduceOp.AVG)
    results["scatter_average"] = out.tolist()
    dist.reduce_scatter(out, list((counted * (rank + 1)).chunk(world)), op=dist.ReduceOp.MAX)
    results["scatter_largest"] = out.tolist()
    out = full(0.0, world)
    dist.all_to_all_single(out, torch.arange(float(world), device=npu) + 10 * rank)
    results["all_to_all"] = out.tolist()
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    results["objects"] = objects
    dist.barrier()
    return results


def trainings(rank: int, world: int, npu: torch.device) -> dict[str, list[float]]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    own_rows = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
    x, y = (whole[own_rows].to(npu) for whole in batch())

    def averaged(loss: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(loss)
        return loss / world

    results = {"ddp": train(nn.parallel.DistributedDataParallel(model().to(npu)), x, y, averaged)}
    sharded, mesh = model().to(npu), init_device_mesh("npu", (world,))
    for layer in (sharded.up, sharded.down):
        fully_shard(layer, mesh=mesh)
    results["fsdp2"] = train(fully_shard(sharded, mesh=mesh), x, y, averaged)
    results["fsdp1"] = train(FullyShardedDataParallel(model(), device_id=0), x, y, averaged)
    return results


def main(store: str, result: str, group: str, what: str) -> None:
    warnings.simplefilter("ignore")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "hccl" if group == "plain" else "cpu:gloo,npu:hccl",
        init_method=Path(store).as_uri(),
        rank=rank,
        world_size=world,
    )
    npu = torch.device("npu", 0)
    torch.npu.set_device(0)
    results = collectives(rank, world, npu)
    if what == "train":
        results |= trainings(rank, world, npu)
    # No rank closes its connections while another one still uses them: once a rank aborted at the end.
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        Path(result).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
