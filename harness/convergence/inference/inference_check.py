"""The check `gpt-oss`: does inference of a gpt-oss model give the CPU's logits on this cell's device?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.check import Check, TaskContext
from harness.evidence import evidence_of, read_device_facts
from harness.outcome import Judgement, Measured, Status, Tier

PROGRAM = "harness.convergence.inference.inference_program"
TIMEOUT_S = 300.0
MOST_TAIL = 4000
# Unit roundoff of HF32, the coarsest format a device computes float32 matrix products in by default.
ROUNDOFF = 2.0**-11
FACETS = (
    "pins",
    "platform",
    "verl_tree",
    "patches[verl]",
    "patches[vllm_ascend]",
    "device",
    "versions",
)


def run(context: TaskContext) -> Measured:
    """Compute both logits in the cell; a program that fails is a measurement."""
    out = context.workdir / "logits.json"
    device = "cpu" if context.facets["device"]["kind"] == "cpu" else "npu:0"
    completed = context.in_cell(PROGRAM, "--device", device, "--out", str(out), timeout=TIMEOUT_S)
    ended = completed.returncode == 0 and not completed.timed_out and out.is_file()
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if ended else {}
    facts = found.get("device", {})
    return Measured(
        measurements={
            **found,
            "ended": ended,
            "returncode": completed.returncode,
            "timed_out": completed.timed_out,
            "tail": "" if ended else completed.tail[-MOST_TAIL:],
        },
        evidence=evidence_of(read_device_facts(facts)),
        environment={"versions": found.get("versions", {}), "device": facts},
    )


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """The largest difference against what rounding every matrix product in HF32 makes of the largest logit.

    Errors of products in a row add up at most linearly: the bound is their number x 2^-11 x the largest.
    """
    if not measurements["ended"]:
        lines = [line.strip() for line in measurements["tail"].splitlines() if line.strip()]
        what = "did not end in time" if measurements["timed_out"] else "failed"
        words = [f"Its last words: {lines[-1]}"] if lines else []
        return Judgement(status=Status.FAIL, reasons=(f"The inference {what}.", *words))
    if not measurements["supported"]:
        return Judgement(status=Status.UNSUPPORTED, reasons=(f"{measurements['why']}.",))
    if not measurements["finite"]:
        return Judgement(status=Status.FAIL, reasons=("Some logits on the device are not finite.",))
    products, largest = int(measurements["matrix_products"]), float(measurements["largest_logit"])
    bound, found = products * ROUNDOFF * largest, float(measurements["largest_difference"])
    sentence = (
        f"Logits differ by {found:.2g} at most where the largest is {largest:.3g}; rounding {products} "
        f"matrix products in a row explains {bound:.2g}."
    )
    if found > bound:
        return Judgement(
            status=Status.FAIL,
            reasons=(sentence,),
            remedies=("Compare attention with sinks, the router and the experts one by one.",),
        )
    same = "the same" if measurements["same_answers"] else "not the same, which rounding can make"
    return Judgement(status=Status.PASS, reasons=(sentence, f"Greedy answers are {same}."))


CHECK = Check(
    name="gpt-oss",
    tier=Tier.NUMERICS,
    question="Does inference of a tiny gpt-oss model give the CPU's logits on this cell's device?",
    facets=FACETS,
    run=run,
    judge=judge,
    needs=("environment",),
    device=True,
    timeout_s=TIMEOUT_S + 60.0,
    expected_s=12.0,
)
