"""A transformers model on the simulated device is correct with eager, SDPA and fused attention, also with padding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch_npu")
pytest.importorskip("transformers")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from model_reference import built, log_prob_and_gradients  # noqa: E402 - needs the guards above
from roundings import Permitted  # noqa: E402

from harness.devices.sim.faults.fault_spec import FaultSpec  # noqa: E402

SIMULATION = overlay.installed()
pytestmark = pytest.mark.skipif(SIMULATION is None, reason="only on the simulated device")
NPU = "npu:0"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Permitted:
    """The result of a process without torch_npu."""
    here, file = Path(__file__).parent, tmp_path_factory.mktemp("model") / "reference.pt"
    paths = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    program = [sys.executable, str(here / "model_reference.py"), str(file)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return Permitted(dtype=torch.float32, **torch.load(file))


@pytest.mark.parametrize(("attention", "fused"), [("eager", 0), ("sdpa", 0), ("flash_attention_2", 2)])
def test_attention_implementations_are_right(expected: Permitted, attention: str, fused: int) -> None:
    counted = FaultSpec(op="npu_fusion_attention", kind="scale", factor=1.0)
    with SIMULATION.faults.injected(counted) as (forward,):
        found = log_prob_and_gradients(built(attention, NPU))
    assert forward.hits == fused
    expected.require(found)


def test_a_wrong_key_gradient_leaves_the_loss_alone(expected: Permitted) -> None:
    wrong = FaultSpec(op="npu_fusion_attention_grad", kind="sign", phase="backward", output=1)
    with SIMULATION.faults.injected(wrong) as (fault,):
        total, *gradients = expected.budgets(log_prob_and_gradients(built("flash_attention_2", NPU)))
    assert fault.hits == 2
    assert total <= 1
    assert max(gradients) > 1
