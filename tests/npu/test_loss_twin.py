"""Training steps on the device compared with a float64 reference run, and faults that begin late. Runs inside a cell.

It takes about a minute and runs only with NPU_MATRIX_TWIN=1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from harness.devices.sim.faults.fault_spec import parse_faults
from harness.numerics.twin import twin_program
from harness.numerics.twin.twin_check import judge
from harness.numerics.twin.twin_compare import compare
from harness.numerics.twin.twin_measurements import TwinMeasured
from harness.outcome import Judgement, Status

torch = pytest.importorskip("torch")
pytest.importorskip("verl")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

pytestmark = pytest.mark.skipif(
    os.environ.get("NPU_MATRIX_TWIN") != "1", reason="takes a minute; set NPU_MATRIX_TWIN=1"
)
SETTINGS = {"steps": 6}
needs_simulation = pytest.mark.skipif(overlay.installed() is None, reason="faults need the simulated device")
CALLS_PER_STEP = 32
"""Calls of softmax: ten tokens of two layers while sampling, then two micro-batches of log-probabilities and two of
the update, each with two layers and the entropy."""


@pytest.fixture(scope="module")
def reference(reference_by: Callable[..., Path]) -> Path:
    """The float64 reference run, in a process without torch_npu."""
    return reference_by("harness.numerics.twin.twin_program", "--case", json.dumps(SETTINGS))


def followed(reference: Path, device: str, out: Path, faults: str = "") -> TwinMeasured:
    """Measurements of the run on the device. Every injected fault must have been hit."""
    simulation = overlay.installed()
    wrong = simulation.faults.injected(*parse_faults(faults)) if simulation and faults else nullcontext([])
    with wrong as active:
        run = twin_program.run_device_twin(twin_program.case_of(SETTINGS), device, reference, out)
    assert all(fault.hits for fault in active)
    torch.distributed.destroy_process_group()
    return compare(twin_program.load_twin_reference(reference), run, 0.0)


def test_six_steps_agree_with_the_reference_run(reference: Path, npu_device: str, tmp_path: Path) -> None:
    judgement = judge(followed(reference, npu_device, tmp_path / "twin.json"), {})
    assert judgement.status is Status.PASS, judgement.reasons


@needs_simulation
@pytest.mark.parametrize(
    ("fault", "step", "first"),
    [
        ("_softmax;round", 1, "the input of model.layers.0.self_attn.o_proj"),
        # Begins within the third update, after the samples and log-probabilities of that step.
        (f"_softmax;round;any;after={2 * CALLS_PER_STEP + 26}", 3, "self_attn.o_proj"),
        (f"_softmax;round;any;after={4 * CALLS_PER_STEP}", 5, "the input of model.layers.0.self_attn.o_proj"),
        ("embedding_dense_backward;zero;any;after=8", 5, "the gradient of model.embed_tokens.weight"),
    ],
)
def test_a_faulty_operator_is_found_with_step_and_module(
    reference: Path, npu_device: str, tmp_path: Path, fault: str, step: int, first: str
) -> None:
    measured = followed(reference, npu_device, tmp_path / "twin.json", fault)
    judgement = judge(measured, {})
    assert judgement.status is Status.FAIL
    assert measured.first is not None
    assert measured.first.step == step
    assert f"{first} in step {step} of 6" in judgement.reasons[1]
    assert all(worst is not None and worst <= 1 for worst in measured.worst_by_step[: step - 1])


def test_a_pass_that_depends_on_an_unknown_error_bound_is_inconclusive(
    reference_by: Callable[..., Path], npu_device: str, tmp_path: Path
) -> None:
    """The activation has no error bound here, so its part of the tolerances is not known."""
    reference = reference_by(
        "harness.numerics.twin.twin_program", "--case", json.dumps(SETTINGS), without="silu"
    )
    run = twin_program.run_device_twin(
        twin_program.case_of(SETTINGS), npu_device, reference, tmp_path / "twin.json"
    )
    torch.distributed.destroy_process_group()
    exact = twin_program.load_twin_reference(reference)
    strict, loose = exact.strict, exact.tolerances

    def judged(error: float) -> Judgement:
        errors = {**run.twin.errors, widest: error}
        return judge(compare(exact, replace(run, twin=replace(run.twin, errors=errors)), 0.0), {})

    assert exact.facts.unbounded_operators == ("silu",)
    widest = max(run.twin.errors, key=lambda label: loose[label] / strict[label])
    judgement = judged((strict[widest] + loose[widest]) / 2)
    assert judgement.status is Status.INCONCLUSIVE, judgement.reasons
    assert judgement.reasons[0].startswith("No error bound is known for silu. 1 tensors are within")
    judgement = judged(strict[widest])
    assert judgement.status is Status.PASS, judgement.reasons
    assert judgement.reasons[1] == "No error bound is known for silu; all tensors agree without it."


@needs_simulation
def test_a_late_rounding_that_the_contract_permits_is_not_flagged(
    reference: Path, npu_device: str, tmp_path: Path
) -> None:
    measured = followed(reference, npu_device, tmp_path / "twin.json", "mm;ulp;any;after=60;ulps=1")
    assert judge(measured, {}).status is Status.PASS
