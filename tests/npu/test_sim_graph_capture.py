"""Graphs on the simulated device: a capture computes nothing that stays, and a replay what the calls compute then."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

torch_npu = pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from harness.devices.sim.faults.fault_spec import FaultSpec  # noqa: E402
from harness.devices.sim.operators import graph_capture  # noqa: E402
from harness.devices.sim.start.sim_environment import LAUNCHER  # noqa: E402

pytestmark = [
    pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device"),
    pytest.mark.skipif(not hasattr(torch.npu, "NPUGraph"), reason="this release has no graphs"),
]
HAS_EXTERNAL_EVENTS = hasattr(torch.npu, "ExternalEvent")

TWO_RANKS = """
import sys, torch, torch_npu, torch.distributed as dist
rank = int(sys.argv[1])
torch.npu.set_device(rank)
dist.init_process_group("hccl", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
x = torch.full((4,), float(rank + 1), device="npu")
dist.all_reduce(x.clone())
torch.npu.synchronize()
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    y = x * 2
    dist.all_reduce(y)
    z = y + 1
for factor in (1.0, 10.0):
    x.fill_(factor * (rank + 1))
    graph.replay()
    assert z.tolist() == [factor * 6 + 1] * 4, z
print("done")
"""


def captured(call: Callable[[], torch.Tensor]) -> tuple[torch.npu.NPUGraph, torch.Tensor]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = call()
    return graph, result


def test_a_replay_computes_with_what_its_inputs_hold_then() -> None:
    layer = nn.Linear(4, 3).npu()
    x, steps = torch.ones(2, 4, device="npu"), torch.zeros(1, device="npu")

    def call() -> torch.Tensor:
        steps.add_(1)
        return layer(x).relu()

    graph, result = captured(call)
    for number in range(1, 4):
        x.copy_(torch.randn(2, 4))
        graph.replay()
        assert torch.equal(result, layer(x).relu())
        assert steps.item() == number


def test_a_capture_changes_no_memory_and_its_results_are_unusable_before_a_replay() -> None:
    x = torch.ones(4, device="npu")
    graph, result = captured(lambda: x.add_(1) * 2)
    assert x.tolist() == [1.0] * 4
    assert result.isnan().all()
    graph.replay()
    assert (x.tolist(), result.tolist()) == ([2.0] * 4, [4.0] * 4)


def test_a_graph_keeps_the_memory_that_it_was_captured_with() -> None:
    weight = nn.Parameter(torch.ones(2, device="npu"))
    graph, result = captured(lambda: weight * 3)
    weight.data = torch.zeros(2, device="npu")
    graph.replay()
    assert result.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.cpu(),
        lambda x: x.copy_(torch.zeros(4)),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x),
        lambda _x: torch.npu.current_stream().synchronize(),
        lambda _x: torch.npu.synchronize(),
    ],
    ids=["item", "cpu", "copy from the host", "nonzero", "mask", "equal", "stream", "device"],
)
def test_waiting_for_a_captured_stream_is_refused_and_the_next_capture_works(wait) -> None:
    x = torch.ones(4, device="npu")
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match=r"error code is 1070(27|30)"), torch.npu.graph(graph):
        wait(x)
    assert not torch.npu.is_current_stream_capturing()
    graph, result = captured(lambda: x + 1)
    graph.replay()
    assert result.tolist() == [2.0] * 4


def test_replays_draw_the_random_numbers_that_eager_calls_would() -> None:
    graph, result = captured(lambda: torch.rand(4, device="npu"))
    torch.npu.manual_seed(7)
    eager = [torch.rand(4, device="npu").tolist() for _ in range(3)]
    torch.npu.manual_seed(7)
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append(result.tolist())
    assert [*replayed, torch.rand(4, device="npu").tolist()] == eager


def test_a_graphed_module_trains_as_the_module() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).npu()
    twin = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).npu()
    twin.load_state_dict(plain.state_dict())
    sample = torch.randn(3, 4, device="npu", requires_grad=True)
    graphed = torch.npu.make_graphed_callables(twin, (sample,))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (plain, twin)]
    for _ in range(3):
        x = torch.randn(3, 4, device="npu")
        losses = []
        for model, optimizer in zip((plain, graphed), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == losses[1]
    assert all(map(torch.equal, plain.parameters(), twin.parameters()))


@pytest.mark.skipif(not HAS_EXTERNAL_EVENTS, reason="this release has no external events")
def test_a_task_group_is_updated_and_a_replay_waits_for_its_event() -> None:
    x, y = torch.ones(4, device="npu"), torch.full((4,), 5.0, device="npu")
    out = torch.zeros(4, device="npu")
    event, update = torch.npu.ExternalEvent(), torch.npu.Stream()

    def call() -> torch.Tensor:
        stream = torch.npu.current_stream()
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        torch.add(x, 1, out=out)
        handles.append(torch.npu.graph_task_group_end(stream))
        return out * 10

    handles: list[object] = []
    graph, result = captured(call)
    graph.replay()
    with pytest.raises(NotImplementedError, match="event that is not recorded"):
        x + 1
    with torch.npu.stream(update):
        torch.npu.graph_task_update_begin(update, handles[0])
        torch.add(y, 2, out=out)
        torch.npu.graph_task_update_end(update)
        event.record(update)
    assert result.tolist() == [70.0] * 4
    graph.replay()
    with torch.npu.stream(update):
        event.record(update)
    assert result.tolist() == [70.0] * 4


@pytest.mark.skipif(not HAS_EXTERNAL_EVENTS, reason="this release has no task groups with external events")
def test_the_fault_of_updates_keeps_the_captured_arguments_and_distorts_no_call() -> None:
    x, out = torch.ones(4, device="npu"), torch.zeros(4, device="npu")
    handles: list[object] = []

    def call() -> torch.Tensor:
        torch.npu.graph_task_group_begin(torch.npu.current_stream())
        torch.add(x, 1, out=out)
        handles.append(torch.npu.graph_task_group_end(torch.npu.current_stream()))
        return out * 10

    graph, result = captured(call)
    update = torch.npu.Stream()
    simulation = overlay.installed()
    for faults, expected in (((FaultSpec(op="add.*", kind="outdated"),), 20.0), ((), 30.0)):
        with simulation.faults.injected(*faults) as active:
            with torch.npu.stream(update):
                torch.npu.graph_task_update_begin(update, handles[0])
                torch.add(x, 2, out=out)
                torch.npu.graph_task_update_end(update)
            assert (x + 1).tolist() == [2.0] * 4
            graph.replay()
        assert result.tolist() == [expected] * 4
        assert [fault.hits for fault in active] == [1] * len(faults)


@pytest.mark.skipif(not HAS_EXTERNAL_EVENTS, reason="this release has no task groups with external events")
def test_an_update_with_another_operator_is_refused() -> None:
    x, out = torch.ones(4, device="npu"), torch.zeros(4, device="npu")
    handles: list[object] = []

    def call() -> torch.Tensor:
        torch.npu.graph_task_group_begin(torch.npu.current_stream())
        torch.add(x, 1, out=out)
        handles.append(torch.npu.graph_task_group_end(torch.npu.current_stream()))
        return out

    captured(call)
    update = torch.npu.Stream()
    with torch.npu.stream(update):
        torch.npu.graph_task_update_begin(update, handles[0])
        with pytest.raises(RuntimeError, match="107033"):
            torch.mul(x, 2, out=out)
        with pytest.raises(RuntimeError, match="107033"):
            torch.npu.graph_task_update_end(update)
    assert (x + 1).tolist() == [2.0] * 4


def test_functions_of_the_host_run_in_each_replay() -> None:
    launch = getattr(torch_npu.npu, "_launch_host_func", None)
    if launch is None:
        pytest.skip("this release has no functions of the host in graphs")
    seen: list[str] = []
    stream = torch.npu.Stream()
    torch_npu.npu._subscribe_report(stream)
    graph = torch.npu.NPUGraph()
    with torch.npu.stream(stream), torch.npu.graph(graph, stream=stream):
        launch(torch.npu.current_stream(), seen.append, "called")
    assert not seen
    graph.replay()
    graph.replay()
    assert seen == ["called", "called"]
    torch_npu.npu._unsubscribe_report(stream)


def test_what_a_replay_raises_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(4, device="npu")
    graph, _result = captured(lambda: x + 1)

    def broken(*_arguments: object) -> None:
        raise ValueError("a kernel failed")

    monkeypatch.setattr(graph_capture.GraphRecorder, "_run", broken)
    with pytest.raises(ValueError, match="a kernel failed"):
        graph.replay()


def test_collectives_are_part_of_a_graph(tmp_path: Path) -> None:
    program = tmp_path / "two_ranks.py"
    program.write_text(TWO_RANKS)
    ranks = [
        subprocess.Popen(
            [sys.executable, *LAUNCHER, str(program), str(rank), str(tmp_path / "store")],
            env=dict(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert all(output.rstrip().endswith("done") for output in outputs), outputs
