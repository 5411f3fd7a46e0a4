"""The hccl backend of the simulated device: collectives, DDP and FSDP agree with one process on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

import ranks  # noqa: E402 - needs the guards above
from roundings import Permitted, permitted  # noqa: E402

from harness.devices.sim.faults.fault_spec import FaultSpec  # noqa: E402

SIMULATION = overlay.installed()
pytestmark = pytest.mark.skipif(SIMULATION is None, reason="only on the simulated device")
slow = pytest.mark.skipif(
    os.environ.get("NPU_MATRIX_TWIN") != "1", reason="takes a minute; set NPU_MATRIX_TWIN=1"
)

PROGRAM = Path(__file__).with_name("ranks.py")
NPU = torch.device("npu", 0)


@pytest.fixture(scope="module")
def tolerance() -> Permitted:
    """The loss of each step of one process in float64, with its fp32 tolerance."""
    x, y = (whole.double() for whole in ranks.batch())

    def formula() -> list[torch.Tensor]:
        losses = ranks.train(ranks.model().double(), x, y, torch.clone)
        return [torch.tensor(loss, dtype=torch.float64) for loss in losses]

    return permitted(formula, torch.float32)


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_faults_distort_collectives() -> None:
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


@pytest.mark.usefixtures("group_of_one")
def test_a_sum_of_gradients_that_is_slightly_wrong_is_red(tolerance: Permitted) -> None:
    x, y = (whole.to(NPU) for whole in ranks.batch())
    for factor, red in ((1.0, False), (1 + 2.0**-12, True)):
        wrong = FaultSpec(op="allreduce_", kind="scale", factor=factor)
        with SIMULATION.faults.injected(wrong) as (fault,):
            trained = torch.nn.parallel.DistributedDataParallel(ranks.model().to(NPU))
            losses = ranks.train(trained, x, y, torch.clone)
        assert fault.hits == ranks.STEPS
        assert (max(tolerance.budgets([torch.tensor(loss) for loss in losses])) > 1) is red


def run_ranks(tmp_path: Path, world: int, group: str, what: str) -> dict[str, Any]:
    result = tmp_path / "found.json"
    program = [sys.executable, "-m", "harness.devices.sim.start.sim_launch", str(PROGRAM)]
    processes = [
        subprocess.Popen(
            [*program, str(tmp_path / "store"), str(result), group, what],
            env={**os.environ, "WORLD_SIZE": str(world), "RANK": str(rank), "LOCAL_RANK": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        outputs = [process.communicate(timeout=900)[0] for process in processes]
    finally:
        # A rank waits forever if another one has ended.
        for process in processes:
            process.kill()
            process.wait()
    failed = {
        rank: (process.returncode, output[-3000:])
        for rank, (process, output) in enumerate(zip(processes, outputs, strict=True))
        if process.returncode
    }
    assert not failed
    found: dict[str, Any] = json.loads(result.read_text())
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
def test_collectives_and_training(
    tmp_path: Path, tolerance: Permitted, world: int, group: str, what: str
) -> None:
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
            tolerance.require([torch.tensor(loss) for loss in found[name]])


def test_one_process_with_several_devices() -> None:
    """torch.nn.DataParallel copies a module to all devices by a broadcast of torch_npu."""
    if torch.npu.device_count() < 2:
        pytest.skip("one device")
    module, x = torch.nn.Linear(6, 3), torch.randn(8, 6)
    expected = module(x)
    expected.square().sum().backward()
    placed = torch.nn.Linear(6, 3)
    placed.load_state_dict(module.state_dict())
    parallel = torch.nn.DataParallel(placed.npu())
    found = parallel(x.npu())
    found.square().sum().backward()
    torch.testing.assert_close(found.cpu(), expected)
    assert module.weight.grad is not None
    assert placed.weight.grad is not None
    torch.testing.assert_close(placed.weight.grad.cpu(), module.weight.grad)
    assert {replica.weight.device.index for replica in torch.nn.parallel.replicate(placed, [0, 1])} == {0, 1}
