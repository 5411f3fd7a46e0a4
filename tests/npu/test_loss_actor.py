"""One update through verl's actor, compared with the CPU, and faults that it must locate. Runs inside a cell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.devices.sim.faults.fault_spec import parse_faults
from harness.numerics.actor import actor_device
from harness.numerics.actor.actor_case import DEFAULT_SEED
from harness.numerics.actor.actor_check import judge
from harness.numerics.actor.actor_compare import compare
from harness.numerics.actor.actor_measurements import ActorMeasured
from harness.numerics.actor.actor_reference import load_reference
from harness.outcome import Status

torch = pytest.importorskip("torch")
pytest.importorskip("verl")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")


@pytest.fixture(scope="module")
def reference(reference_by: Callable[..., Path]) -> Path:
    """The update on the CPU, in a process without torch_npu."""
    return reference_by("harness.numerics.actor.actor_program")


def updated(reference: Path, device: str, out: Path, faults: str = "") -> ActorMeasured:
    """Measurements of the update on the device, with injected faults."""
    simulation = overlay.installed()
    wrong = simulation.faults.injected(*parse_faults(faults)) if simulation else nullcontext()
    with wrong:
        run = actor_device.measure_on_device(device, reference, out, DEFAULT_SEED)
    torch.distributed.destroy_process_group()
    return compare(load_reference(reference), run, 0.0)


def test_the_update_is_that_of_the_cpu(reference: Path, npu_device: str, tmp_path: Path) -> None:
    """Every tensor is within its measured tolerance, and both injected faults are located."""
    measured = updated(reference, npu_device, tmp_path / "device.json")
    judgement = judge(measured, {})
    assert judgement.status is Status.PASS, judgement.reasons
    assert measured.differing == ()


@pytest.mark.skipif(overlay.installed() is None, reason="faults need the simulated device")
@pytest.mark.parametrize(
    ("fault", "first", "operator"),
    [
        ("_softmax;round", "the input of model.layers.0.self_attn.o_proj", "_softmax"),
        ("sin;sign", "output 2 of model.rotary_emb", "sin"),
        ("exp;scale;any;factor=1.02", "the loss as its backward starts (pass 1)", "exp"),
        ("npu_cross_entropy_loss;round", "log_prob", "npu.npu_cross_entropy_loss"),
        ("embedding_dense_backward;zero", "the gradient of model.embed_tokens.weight", "linalg_vector_norm"),
    ],
)
def test_a_faulty_operator_is_located(
    reference: Path, npu_device: str, tmp_path: Path, fault: str, first: str, operator: str
) -> None:
    """The first tensor outside its tolerance comes from the operator, which is among those that ran."""
    measured = updated(reference, npu_device, tmp_path / "device.json", fault)
    judgement = judge(measured, {})
    assert judgement.status is Status.FAIL
    assert first in judgement.reasons[1]
    assert measured.first is not None
    assert operator in measured.first.operators
    assert judgement.reasons[2].startswith("Operators that ran since the last correct tensor")


@pytest.mark.skipif(overlay.installed() is None, reason="faults need the simulated device")
def test_rounding_that_the_contract_permits_is_not_flagged(
    reference: Path, npu_device: str, tmp_path: Path
) -> None:
    """Every matmul may be off by one unit in the last place in fp32."""
    judgement = judge(updated(reference, npu_device, tmp_path / "device.json", "mm;ulp;any;ulps=1"), {})
    assert judgement.status is Status.PASS, judgement.reasons


@pytest.mark.skipif(overlay.installed() is None, reason="faults need the simulated device")
def test_a_fault_in_fused_attention_shows_in_packed_rows_alone(
    reference: Path, npu_device: str, tmp_path: Path
) -> None:
    """With padded rows attention is not fused, so only packed rows call the fused operator."""
    fault = "npu_fusion_attention_grad;sign;backward;output=1"
    measured = updated(reference, npu_device, tmp_path / "device.json", fault)
    if measured.packed.skipped:
        pytest.skip(measured.packed.skipped)
    judgement = judge(measured, {})
    assert measured.diverged == 0
    assert judgement.status is Status.FAIL
    assert "k_proj" in judgement.reasons[0]
