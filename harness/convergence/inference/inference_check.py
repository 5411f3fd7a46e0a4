"""The check `gpt-oss`: are the logits of a tiny gpt-oss model on the device equal to the CPU's?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.cell_program.program_run import (
    ProgramFailure,
    Unsupported,
    cell_device,
    run_in_cell,
)
from harness.check import Check, TaskContext
from harness.convergence.inference.inference_measurements import (
    INFERENCE_FORMAT,
    InferenceMeasurements,
    UnsupportedInference,
)
from harness.errors import EXIT_NOTHING_SELECTED
from harness.evidence import evidence_of
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.serialisation import to_json

PROGRAM = "harness.convergence.inference.inference_program"
TIMEOUT_S = 300.0
ROUNDOFF = 2.0**-11
"""Unit roundoff of HF32, the coarsest format a device computes float32 matmuls in by default."""
FACETS = (
    "pins",
    "platform",
    "verl_tree",
    "patches[verl]",
    "patches[vllm_ascend]",
    "patches[others]",
    "device",
    "versions",
)

Measurements = InferenceMeasurements | UnsupportedInference | ProgramFailure


def run(context: TaskContext) -> Measured[Measurements]:
    """Compute the logits in the cell, on the device and on the CPU. A program that fails is a measurement."""
    out = context.workdir / "logits.json"
    device = cell_device(context)
    ended = run_in_cell(
        context,
        PROGRAM,
        *("--device", device, "--out", str(out)),
        out=out,
        what="the inference",
        timeout=TIMEOUT_S,
        on=device,
    )
    if isinstance(ended, Unsupported):
        ended = ProgramFailure(state="crashed", returncode=EXIT_NOTHING_SELECTED, tail=ended.why, on=device)
    if isinstance(ended, ProgramFailure):
        # The device is unknown, so the evidence is the weakest.
        return Measured(measurements=ended, evidence=Evidence.CPU)
    found = INFERENCE_FORMAT.read(json.loads(out.read_bytes()))
    assert not isinstance(found, ProgramFailure), "the program does not write its own failure"
    return Measured(
        measurements=found,
        evidence=evidence_of(found.device),
        environment={"versions": dict(found.versions), "device": to_json(found.device)},
    )


def judge(measured: Measurements, _params: Mapping[str, Any]) -> Judgement:
    """Compare the largest difference of logits with the rounding error of consecutive matmuls in HF32.

    These errors add up at most linearly: the bound is the number of matmuls x 2^-11 x the largest logit.
    """
    if isinstance(measured, ProgramFailure):
        return Judgement(
            status=Status.FAIL, reasons=(f"The inference {measured.ending}.", *measured.last_line)
        )
    if isinstance(measured, UnsupportedInference):
        return Judgement(status=Status.UNSUPPORTED, reasons=(f"{measured.why}.",))
    if not measured.finite:
        return Judgement(status=Status.FAIL, reasons=("Some logits on the device are not finite.",))
    largest, found = float(measured.largest_logit), float(measured.largest_difference)
    bound = measured.matrix_products * ROUNDOFF * largest
    sentence = (
        f"Logits differ by at most {found:.2g} (the largest logit is {largest:.3g}); rounding in "
        f"{measured.matrix_products} consecutive matmuls explains {bound:.2g}."
    )
    if found > bound:
        return Judgement(
            status=Status.FAIL,
            reasons=(sentence,),
            remedies=("Compare attention with sinks, the MoE router and the experts one by one.",),
        )
    same = "equal" if measured.same_answers else "different, which rounding can cause"
    return Judgement(status=Status.PASS, reasons=(sentence, f"The greedily decoded tokens are {same}."))


CHECK = Check(
    name="gpt-oss",
    tier=Tier.NUMERICS,
    question="Does a tiny gpt-oss model compute the same logits on this cell's device as on the CPU?",
    facets=FACETS,
    measurements=INFERENCE_FORMAT,
    run=run,
    judge=judge,
    needs=("environment",),
    device=True,
    timeout_s=TIMEOUT_S + 60.0,
    expected_s=12.0,
)
