"""The check `actor`: one update through verl's own actor on the device, tensor by tensor against float64.

A tensor's tolerance is measured, not chosen: the farthest that eight runs go in which every operation is off
by what the fp32 contract permits, times the contract's safety (`stochastic`, `actor_reference`). Gradients
are compared as vectors, parameter by parameter: norms would hide a wrong sign.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cell_program.built_environment import environment_location
from harness.cell_program.ending import (
    CRASHED,
    LAST_WORDS,
    MEASURED,
    ended,
    failure,
    last_words,
    require_setup,
)
from harness.cell_program.torch_device import device_name
from harness.check import Completed, TaskContext
from harness.evidence import evidence_of, read_device_facts
from harness.numerics.actor.actor_compare import compare
from harness.numerics.actor.gradient_resolution import detectable_error, judge_resolution, unobservable_reason
from harness.numerics.arithmetic import unbounded_operators
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.package import IMPORT_ROOT

PROGRAM = "harness.numerics.actor.actor_program"
REFERENCE_TIMEOUT_S = 240.0
DEVICE_TIMEOUT_S = 300.0
UNSUPPORTED = "unsupported"
REFERENCE = "the CPU reference"
MOST_OPERATORS = 10
REMEDY = "Begin with the first tensor: they stand in the order of their making, and all before it are right."
PRODUCTS_REMEDY = (
    "Partial sums are kept in a low precision, or operands are not what was given: look for a switch of the "
    "matrix unit, such as a reduced-precision reduction."
)
DETERMINISM = (
    "HCCL_DETERMINISTIC=true, CLOSE_MATMUL_K_SHIFT=1 and torch's deterministic algorithms where runs are "
    "to be compared"
)
"""verl's docs/ascend_tutorial, ascend_consistency."""

#: (the reference, what the device says) -> what follows from both.
Comparison = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]


def run(context: TaskContext) -> Measured:
    """By each path that this verl trains with: the reference on a CPU without torch_npu, then the update on
    the device, with the same packages."""
    measured = _run_path(context, "")
    others = []
    for path in measured.measurements.get("reference", {}).get("paths", ())[1:]:
        other = _run_path(context, path)
        others.append({"path": path, **_not_the_device(other.measurements)})
        measured = replace(measured, artifacts={**measured.artifacts, **other.artifacts})
    return replace(measured, measurements={**measured.measurements, "others": others})


def _not_the_device(measurements: Mapping[str, Any]) -> Mapping[str, Any]:
    """A path that verl does not take by itself and that fails on a CPU, too, says nothing of the device."""
    if measurements.get("on") != REFERENCE:
        return measurements
    said = " ".join(last_words(measurements["tail"]))
    return {"state": UNSUPPORTED, "why": f"Not run, for it fails on a CPU, too. {said}".strip()}


def _run_path(context: TaskContext, path: str) -> Measured:
    from harness.errors import EXIT_NOTHING_SELECTED
    from harness.numerics.actor.actor_case import DEFAULT_SEED
    from harness.numerics.actor.actor_reference import ACTOR_REFERENCE_FORMAT

    given = [f"--seed={context.params.get('seed', DEFAULT_SEED)}", f"--path={path}"]
    given.append(f"--compute={context.params.get('compute', 'float32')}")
    suffix = f"-{path}" if path else ""
    reference_file = context.workdir / f"reference{suffix}.npz"
    device_file = context.workdir / f"device{suffix}.json"
    referenced = reference_process(
        context, PROGRAM, f"--out={reference_file}", *given, timeout=REFERENCE_TIMEOUT_S
    )
    if referenced.returncode == EXIT_NOTHING_SELECTED:
        return without(context, {"state": UNSUPPORTED, "why": referenced.tail[-LAST_WORDS:].strip()})
    require_setup(referenced, REFERENCE)
    if referenced.returncode != 0 or not reference_file.is_file():
        return without(context, {**failure(referenced), "on": REFERENCE})
    device = device_name(context.facets.get("device", {}))
    updated = context.in_cell(
        PROGRAM,
        *("--role=device", f"--device={device}", f"--reference={reference_file}", f"--out={device_file}"),
        *given,
        timeout=DEVICE_TIMEOUT_S,
    )
    require_setup(updated, "the actor's update")
    if updated.returncode != 0 or not device_file.is_file():
        return without(context, {**failure(updated), "on": device}, reference_file)
    return held_together(
        reference_file, device_file, referenced.seconds + updated.seconds, ACTOR_REFERENCE_FORMAT, compare
    )


def reference_process(context: TaskContext, program: str, *args: str, timeout: float) -> Completed:
    """A program's reference role with the cell's packages, but no device: torch would load torch_npu by
    itself."""
    environment = environment_location(context.inputs["environment"])
    return context.command(
        [environment.python, "-m", program, "--role", "reference", *args],
        env={
            "PYTHONPATH": str(IMPORT_ROOT),
            "PYTHONSAFEPATH": "1",
            "PYTHONNOUSERSITE": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "OMP_NUM_THREADS": "1",
            # Stand-ins for NVIDIA's libraries, which a cell's CUDA build of torch does not start without.
            **({"LD_LIBRARY_PATH": environment.runtime} if environment.runtime else {}),
        },
        timeout=timeout,
    )


def without(context: TaskContext, measurements: Mapping[str, Any], *files: Path) -> Measured:
    """What is measured where the device has said nothing of itself."""
    device = device_name(context.facets.get("device", {}))
    return Measured(
        measurements={**measurements, "device": {"device": device}},
        # Nothing reported the device, so nothing stronger than "ran on a CPU" is known.
        evidence=Evidence.CPU,
        artifacts={file.name: file.name for file in files},
    )


def held_together(
    reference_file: Path, device_file: Path, seconds: float, form: str, compare: Comparison
) -> Measured:
    """What `compare` says of the reference (a file of `form`) and the device, and what both tell."""
    from harness.numerics.loss.cases.loss_case import read_npz

    reference, _ = read_npz(reference_file, form)
    facts = json.loads(device_file.read_text(encoding="utf-8"))
    measurements = {
        "state": MEASURED,
        **compare(reference, facts),
        "verl": facts["verl"],
        "path": facts["path"],
        "compute": facts.get("compute", "float32"),
        "finding": facts.get("finding", ""),
        "device": facts["device"],
        "reference": reference["facts"],
        "seconds": {
            "reference": reference["facts"]["seconds"],
            "device": facts["seconds"],
            "all": round(seconds, 3),
        },
    }
    return Measured(
        measurements=measurements,
        evidence=evidence_of(read_device_facts(facts["device"])),
        artifacts={file.name: file.name for file in (reference_file, device_file)},
        environment={"verl": facts["verl"], "device": facts["device"]},
    )


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Pure: pass when by no path a tensor diverges, what diverges would show, and the seeded faults were
    caught where they sit."""
    judged = [_judge_path(measurements)]
    left_out: list[str] = []
    for other in measurements.get("others", ()):
        judgement = _judge_path(other)
        reasons = tuple(f"{other['path']}: {reason}" for reason in judgement.reasons)
        if judgement.status is Status.UNSUPPORTED:
            left_out += reasons
        else:
            judged.append(replace(judgement, reasons=reasons))
    worst = min(judged, key=lambda judgement: GRAVEST.index(judgement.status))
    alike = [judgement for judgement in judged if judgement.status is worst.status]
    return replace(
        worst, reasons=(*(reason for judgement in alike for reason in judgement.reasons), *left_out)
    )


GRAVEST = (Status.FAIL, Status.INCONCLUSIVE, Status.UNSUPPORTED, Status.PASS)


def _judge_path(measurements: Mapping[str, Any]) -> Judgement:
    if measurements["state"] == UNSUPPORTED:
        return Judgement(status=Status.UNSUPPORTED, reasons=(measurements["why"],))
    if measurements["state"] != MEASURED:
        return _judge_not_measured(measurements)
    ill_posed = _ill_posed(measurements)
    if ill_posed:
        return ill_posed
    if measurements["products"]["wrong"]:
        return _judge_products(measurements)
    if measurements["diverged"] or measurements["missing"]:
        return _judge_diverged(measurements)
    packed = measurements["packed"]
    if packed.get("diverged") or packed.get("error"):
        return _judge_packed(packed)
    missed = [entry["fault"] for entry in measurements["self_test"] if not entry["caught"]]
    if not packed.get("fault_caught", True):
        missed.append("the one in packed rows")
    if missed or not measurements["self_test"]:
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(
                f"The self-test missed {', '.join(missed) or 'every fault'}, so green would mean nothing.",
            ),
            remedies=("Look at self_test in the measurements; report it with the artifacts.",),
        )
    return (
        judge_resolution(measurements)
        or unbounded_operators.judge_guessed(measurements)
        or _passes(measurements)
    )


def _passes(measurements: Mapping[str, Any]) -> Judgement:
    packed, kinds = measurements["packed"], measurements["kinds"]
    worst = max(kinds.values(), key=lambda entry: entry["worst_budget"])["worst_budget"]
    summary = (
        f"{measurements['tensors']} tensors of one update through {measurements['path']} agree with the "
        f"float64 reference, {len(measurements['gradients'])} gradients and "
        f"{kinds.get('parameter', {}).get('tensors', 0)} updated parameters among them (worst error "
        f"{worst:.0%} of its bound; {detectable_error(measurements)}); "
        f"{len(measurements['self_test'])} seeded faults were caught and located."
    )
    packed_rows = (
        f"With packed rows and fused attention the path was not run: {packed['why']}."
        if "why" in packed
        else f"With packed rows and fused attention {packed['tensors']} tensors agree, too (worst "
        f"{packed['worst_budget']:.0%})."
    )
    products = measurements["products"]
    reasons = [summary, packed_rows]
    if products["count"]:
        reasons.append(
            f"All {products['count']} matrix products of linear layers ({products['elements']} elements) are "
            "to the last bit what bf16 operands and fp32 accumulation give."
        )
    reasons += [*unobservable_reason(measurements), *unbounded_operators.agreement_reason(measurements)]
    if measurements.get("finding"):
        reasons.append(f"Finding: {measurements['finding']}.")
    return Judgement(status=Status.PASS, reasons=(*reasons, *_repeatability(measurements)))


def _ill_posed(measurements: Mapping[str, Any]) -> Judgement | None:
    """No verdict where rounding alone may take another branch of the loss."""
    slack = measurements.get("reference", {}).get("slack")
    if slack is None or slack > 1:
        return None
    reason = (
        f"Ill-posed: roundings of {measurements['compute']} may take a clip decision to its other side (the "
        f"nearest is {slack:.3g} times as far from its bound as roundings go), so the device may differ."
    )
    return Judgement(
        status=Status.INCONCLUSIVE, reasons=(reason,), remedies=("Compute in fp32, or use another seed.",)
    )


def _judge_products(measurements: Mapping[str, Any]) -> Judgement:
    products, where = measurements["products"], measurements["device"]["device"]
    first = products["wrong"][0]
    what = f"Matrix products on {where} are not those of bf16 operands and fp32 accumulation."
    which = (
        f"The first is {first['what']} of {first['name']} (pass {first['call'] + 1}): {first['wrong']} of "
        f"{first['elements']} elements, by up to {first['worst']:.3g} units in the last place of bf16."
    )
    return Judgement(status=Status.FAIL, reasons=(what, which), remedies=(PRODUCTS_REMEDY,))


def _judge_packed(packed: Mapping[str, Any]) -> Judgement:
    """Right with padded rows, wrong or impossible with packed ones."""
    if "error" in packed:
        reason = f"With packed rows and fused attention the update raised {packed['error']}."
    else:
        what = {"gradient": "the gradient of ", "parameter": "the updated "}.get(packed["kind"], "")
        reason = (
            f"With packed rows and fused attention {packed['diverged']} of {packed['tensors']} tensors are "
            f"wrong, first {what}{packed['first']}; with padded rows none is."
        )
    return Judgement(
        status=Status.FAIL,
        reasons=(reason,),
        remedies=(
            "Fused attention or what unpads the batch is wrong: use_remove_padding=False avoids both.",
        ),
    )


def _judge_diverged(measurements: Mapping[str, Any]) -> Judgement:
    where = measurements["device"]["device"]
    total = measurements["tensors"]
    reasons = [f"{measurements['diverged']} of {total} tensors of the actor's update are wrong on {where}."]
    first = measurements["first"]
    if first is not None:
        reasons.append(f"The first to diverge is {first['sentence']}: {_amount(first['budget'])}.")
        if first["operators"]:
            reasons.append(f"What ran since the last right tensor: {_operators(first['operators'])}.")
    gradients = [
        entry for entry in measurements["gradients"] if entry["budget"] is None or entry["budget"] > 1
    ]
    if gradients:
        names = ", ".join(dict.fromkeys(entry["name"] for entry in gradients[:3]))
        reasons.append(
            f"{len(gradients)} of {len(measurements['gradients'])} gradients are wrong ({names}, ...)."
        )
    if measurements["missing"]:
        reasons.append(f"{len(measurements['missing'])} results are missing: {measurements['missing'][0]}.")
    return Judgement(
        status=Status.FAIL,
        reasons=(*reasons, *unbounded_operators.caveat_reason(measurements), *_repeatability(measurements)),
        remedies=(REMEDY,),
    )


def _amount(budget: float | None) -> str:
    return (
        "it is not finite or has the wrong shape"
        if budget is None
        else f"its error is {budget:.3g} times its bound"
    )


def _operators(names: list[str]) -> str:
    """The latest ones: the tensor came out of them."""
    latest = names[-MOST_OPERATORS:]
    return ", ".join(latest) if len(latest) == len(names) else f"..., {', '.join(latest)}"


def _repeatability(measurements: Mapping[str, Any]) -> tuple[str, ...]:
    differing = measurements["differing"]
    if not differing:
        return ()
    return (f"Two runs differ, first in {differing[0]}: set {DETERMINISM}.",)


def _judge_not_measured(measurements: Mapping[str, Any]) -> Judgement:
    what = f"The actor's update on {measurements['on']} {ended(measurements)}."
    return Judgement(
        status=Status.FAIL,
        reasons=(what, *last_words(measurements["tail"])),
        remedies=(
            "Read the task's log; an operator the device lacks is named there."
            if measurements["state"] == CRASHED
            else "Read the task's log; run the check again to see whether it is stable.",
        ),
    )
