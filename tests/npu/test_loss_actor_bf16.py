"""One bf16 update with verl's autocast: legal rounding passes, and does not hide faults. Runs inside a cell.

It takes about a minute and runs only with NPU_MATRIX_TWIN=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.devices.sim.faults.fault_spec import parse_faults
from harness.numerics.actor import actor_device
from harness.numerics.actor.actor_case import DEFAULT_SEED
from harness.numerics.actor.actor_check import judge
from harness.numerics.actor.actor_compare import compare
from harness.numerics.actor.actor_reference import load_reference
from harness.outcome import Judgement, Status

torch = pytest.importorskip("torch")
pytest.importorskip("verl")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")
pytestmark = pytest.mark.skipif(
    os.environ.get("NPU_MATRIX_TWIN") != "1", reason="takes a minute; set NPU_MATRIX_TWIN=1"
)
needs_simulation = pytest.mark.skipif(overlay.installed() is None, reason="faults need the simulated device")


@pytest.fixture(scope="module")
def reference(reference_by: Callable[..., Path]) -> Path:
    """The update on the CPU, in a process without torch_npu."""
    return reference_by("harness.numerics.actor.actor_program", "--compute", "bfloat16")


def judged(reference: Path, device: str, folder: Path, faults: str = "") -> Judgement:
    """The judgement of the update on the device. Every injected fault must have been hit."""
    simulation = overlay.installed()
    wrong = simulation.faults.injected(*parse_faults(faults)) if faults else nullcontext([])
    with wrong as active:
        run = actor_device.measure_on_device(
            device, reference, folder / "device.json", DEFAULT_SEED, compute="bfloat16"
        )
    torch.distributed.destroy_process_group()
    assert all(fault.hits for fault in active)
    return judge(compare(load_reference(reference), run, 0.0), {})


def test_the_update_is_that_of_the_cpu(reference: Path, npu_device: str, tmp_path: Path) -> None:
    judgement = judged(reference, npu_device, tmp_path)
    assert judgement.status is Status.PASS, judgement.reasons
    assert "exactly the values that bf16 operands with fp32 accumulation give" in judgement.reasons[2]


@needs_simulation
@pytest.mark.parametrize("fault", ["matmul;lowacc;any;dtype=float32;block=8", "npu_rms_norm;round"])
def test_what_the_contract_permits_is_not_flagged(
    reference: Path, npu_device: str, tmp_path: Path, fault: str
) -> None:
    """Sums in another order, and an activation that is rounded to a dtype that autocast may use."""
    judgement = judged(reference, npu_device, tmp_path, fault)
    assert judgement.status is Status.PASS, judgement.reasons


@needs_simulation
@pytest.mark.parametrize(
    ("fault", "first"),
    [
        ("addmm;lowacc;forward", "the output of model.layers.0.self_attn.q_proj (pass 1)"),
        ("matmul;lowacc;forward", "the output of model.layers.0.self_attn.o_proj (pass 1)"),
        ("mm;lowacc;backward", "the gradient for the input of model.layers.1.self_attn.v_proj (pass 1)"),
        ("_softmax_backward_data;sign", "model.layers.1.self_attn."),
        ("npu_cross_entropy_loss;scale;forward;factor=1.5", "log_prob"),
        ("embedding_dense_backward;zero", "the gradient of model.embed_tokens.weight"),
    ],
)
def test_a_faulty_operator_is_located(
    reference: Path, npu_device: str, tmp_path: Path, fault: str, first: str
) -> None:
    """Partial sums in low precision are located in their layer, wrong signs and sizes where they first appear."""
    judgement = judged(reference, npu_device, tmp_path, fault)
    assert judgement.status is Status.FAIL, judgement.reasons
    assert first in judgement.reasons[1]
