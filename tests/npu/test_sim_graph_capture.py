"""The simulated device captures no graphs: it says so at once, and the program can go on."""

from __future__ import annotations

import pytest
import torch

torch_npu = pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from harness.cell_program.unsimulated_operators import unsimulated_operators  # noqa: E402

pytestmark = [
    pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device"),
    pytest.mark.skipif(not hasattr(torch.npu, "NPUGraph"), reason="this release has no graphs"),
]


def test_a_capture_is_refused_before_it_changes_the_stream() -> None:
    x = torch.ones(4, device="npu")
    stream = torch.npu.current_stream()
    with pytest.raises(NotImplementedError, match=r"not simulated: torch\.npu\.graph"):
        torch.npu.graph(torch.npu.NPUGraph()).__enter__()
    assert torch.npu.current_stream() == stream
    assert (x + 1).tolist() == [2.0] * 4


def test_every_way_into_a_capture_is_refused_as_not_simulated() -> None:
    layer = torch.nn.Linear(4, 4).npu()
    x = torch.ones(2, 4, device="npu", requires_grad=True)
    for capture in (
        lambda: torch.npu.NPUGraph().capture_begin(),
        lambda: torch.npu.make_graphed_callables(layer, (x,)),
    ):
        with pytest.raises(NotImplementedError) as error:
            capture()
        assert unsimulated_operators(str(error.value)) == ["torch.npu.graph"]
