"""The check `actor`: one update through verl's own actor on the device, tensor by tensor against float64.

A tensor's tolerance is measured, not chosen: the farthest that eight runs go in which every operation is off
by what the fp32 contract permits, times the contract's safety (`stochastic`, `actor_run`). Per-parameter
gradients are compared as vectors: norms would hide a wrong sign.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.check import Completed, TaskContext
from harness.numerics.ending import (
    CRASHED,
    LAST_WORDS,
    MEASURED,
    ended,
    failure,
    last_words,
    require_setup,
)
from harness.outcome import Evidence, Judgement, Measured, Status

PROGRAM = "harness.numerics.actor_run"
REFERENCE_TIMEOUT_S = 240.0
DEVICE_TIMEOUT_S = 300.0
UNSUPPORTED = "unsupported"
MOST_NAMED = 12
MOST_OPERATORS = 10
REMEDY = "Look X tensor in the order it was made."
DETERMINISM = (
    "HCCL_DETERMINISTIC=true, CLOSE_MATMUL_K_SHIFT=1 and torch's deterministic algorithms where runs are "
    "to be compared"
)
"""verl's docs/ascend_tutorial, ascend_consistency."""

#: (the reference, what the device says) -> what follows from both.
Comparison = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]


def run(context: TaskContext) -> Measured:
    """The reference on a CPU without torch_npu, then the update on the device, with the same packages."""
    from harness.errors import EXIT_NOTHING_SELECTED
    from harness.numerics.actor_case import DEFAULT_SEED
    from harness.numerics.actor_run import FORMAT

    seed = str(context.params.get("seed", DEFAULT_SEED))
    reference_file, device_file = (context.workdir / name for name in ("reference.npz", "device.json"))
    referenced = reference_process(
        context, PROGRAM, "--out", str(reference_file), "--seed", seed, timeout=REFERENCE_TIMEOUT_S
    )
    if referenced.returncode == EXIT_NOTHING_SELECTED:
        return without(context, {"state": UNSUPPORTED, "why": referenced.tail[-LAST_WORDS:].strip()})
    if referenced.returncode != 0 or not reference_file.is_file():
        return without(context, {**failure(referenced), "on": "the CPU reference"})
    device = device_name(context.facets.get("device", {}))
    updated = context.in_cell(
        PROGRAM,
        *("--role", "device", "--device", device, "--reference", str(reference_file)),
        *("--out", str(device_file), "--seed", seed),
        timeout=DEVICE_TIMEOUT_S,
    )
    require_setup(updated, "the actor's update")
    if updated.returncode != 0 or not device_file.is_file():
        return without(context, {**failure(updated), "on": device}, reference_file)
    return held_together(reference_file, device_file, referenced.seconds + updated.seconds, FORMAT, compare)


def reference_process(context: TaskContext, program: str, *args: str, timeout: float) -> Completed:
    """A program's reference role with the cell's packages, but no device: torch would load torch_npu by
    itself."""
    environment = context.inputs["environment"].measurements
    return context.command(
        [environment["python"], "-m", program, "--role", "reference", *args],
        env={
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "PYTHONSAFEPATH": "1",
            "PYTHONNOUSERSITE": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "OMP_NUM_THREADS": "1",
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
    from harness.numerics.case import read_npz
    from harness.numerics.device import evidence_of

    reference, _ = read_npz(reference_file, form)
    facts = json.loads(device_file.read_text(encoding="utf-8"))
    measurements = {
        "state": MEASURED,
        **compare(reference, facts),
        "verl": facts["verl"],
        "path": facts["path"],
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
        evidence=evidence_of(facts["device"]),
        artifacts={file.name: file.name for file in (reference_file, device_file)},
        environment={"verl": facts["verl"], "device": facts["device"]},
    )


def compare(reference: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Which tensors are farther from the reference than they may be, and which of them was the first."""
    tolerances, norms = reference["tolerances"], reference["norms"]
    events = [
        {**event, "budget": _budget(event["error"], tolerances.get(event["label"]))}
        for event in facts["events"]
        # A module that only one side calls (a fused kernel replaces it on the other) has no counterpart.
        if event["label"] in tolerances
    ]
    diverged = [event for event in events if event["budget"] is None or event["budget"] > 1]
    return {
        "tensors": len(events),
        "diverged": len(diverged),
        "first": _named(diverged[0]) if diverged else None,
        "named": [_named(event) for event in diverged[:MOST_NAMED]],
        "kinds": _kinds(events),
        "gradients": [
            {
                "name": event["label"].split("/")[2],
                "step": int(event["label"].split("/")[1]) + 1,
                "relative_error": _relative(event["error"], norms[event["label"]]),
                "tolerance": _relative(tolerances[event["label"]], norms[event["label"]]),
                "budget": event["budget"],
            }
            for event in events
            if event["kind"] == "gradient"
        ],
        "missing": [label for label in facts["missing"] if not _is_module(label)],
        "bypassed": sum(_is_module(label) for label in facts["missing"]),
        "differing": facts["differing"][:MOST_NAMED],
        "packed": packed_path(tolerances, reference["labels"], facts["packed"]),
        "self_test": self_test(tolerances, facts["faults"]),
    }


def packed_path(
    tolerances: Mapping[str, float], labels: Sequence[str], packed: Mapping[str, Any]
) -> dict[str, Any]:
    """What packing and fused attention change of an update: `why` or `error` when it did not come to that.

    labels: everything the reference recorded, in the order of its making.
    """
    from harness.numerics.actor_run import FAULT_PLACES, PACKED_FAULT

    if "errors" not in packed:
        return dict(packed)
    lost = [label for label in tolerances if label not in packed["errors"] and not _is_module(label)]
    budgets = {**_budgets(tolerances, packed["errors"]), **dict.fromkeys(lost)}
    wrong = [label for label, budget in budgets.items() if not _within(budget)]
    faulty = [
        label for label, budget in _budgets(tolerances, packed["faulty"]).items() if not _within(budget)
    ]
    first = _nearest_to_the_loss(wrong, labels)
    return {
        "tensors": len(budgets),
        "diverged": len(wrong),
        "first": first.split("/", 2)[2].rstrip("/") if wrong else "",
        "kind": first.split("/")[0],
        "worst_budget": max((budget for budget in budgets.values() if budget is not None), default=0.0),
        "fault_caught": bool(faulty) and faulty[0].split("/")[2] == FAULT_PLACES[PACKED_FAULT],
    }


def _nearest_to_the_loss(wrong: list[str], labels: Sequence[str]) -> str:
    """Of the first pass's gradients that of the module called last: they flow from there to the first."""
    gradients = [label for label in wrong if label.startswith("gradient/0/")]
    if gradients and wrong[0].startswith("gradient/"):
        modules = dict.fromkeys(label.split("/")[2] for label in labels if label.startswith("forward/0/"))
        called = {module: place for place, module in enumerate(modules)}
        return max(gradients, key=lambda label: called.get(label.split("/")[2].rpartition(".")[0], -1))
    return wrong[0] if wrong else ""


def _budgets(tolerances: Mapping[str, float], errors: Mapping[str, float | None]) -> dict[str, float | None]:
    return {
        label: _budget(error, tolerances[label]) for label, error in errors.items() if label in tolerances
    }


def _is_module(label: str) -> bool:
    return label.startswith(("forward/", "backward/"))


def _within(budget: float | None) -> bool:
    return budget is not None and budget <= 1


def self_test(tolerances: Mapping[str, float], faults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each seeded fault: whether it was caught, and whether the first tensor to diverge is where it sits."""
    from harness.numerics.actor_run import FAULT_PLACES, FAULTS

    report = []
    for fault, what in FAULTS.items():
        errors = faults.get(fault, {})
        found = [
            label
            for label, error in errors.items()
            if label in tolerances and ((budget := _budget(error, tolerances[label])) is None or budget > 1)
        ]
        place = FAULT_PLACES[fault]
        report.append(
            {
                "fault": fault,
                "what": what,
                "place": place,
                "caught": bool(found) and found[0].split("/")[2] == place,
                "first": found[0] if found else "",
            }
        )
    return report


def _budget(error: float | None, tolerance: float | None) -> float | None:
    """Error over tolerance; None where the tensor is missing, misshapen or not finite."""
    if error is None or tolerance is None:
        return None
    return float(f"{error / max(tolerance, 1e-300):.4g}")


def _relative(size: float | None, norm: float) -> float | None:
    return None if size is None else float(f"{size / max(norm, 1e-300):.4g}")


def _named(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in ("label", "kind", "sentence", "operators", "budget")}


def _kinds(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {}
    for event in events:
        entry = kinds.setdefault(event["kind"], {"tensors": 0, "diverged": 0, "worst_budget": 0.0})
        entry["tensors"] += 1
        entry["diverged"] += event["budget"] is None or event["budget"] > 1
        if event["budget"] is not None:
            entry["worst_budget"] = max(entry["worst_budget"], event["budget"])
    return kinds


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Pure: pass when no tensor diverges and both seeded faults were caught where they sit."""
    if measurements["state"] == UNSUPPORTED:
        return Judgement(status=Status.UNSUPPORTED, reasons=(measurements["why"],))
    if measurements["state"] != MEASURED:
        return _judge_not_measured(measurements)
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
    kinds = measurements["kinds"]
    worst = max(kinds.values(), key=lambda entry: entry["worst_budget"])["worst_budget"]
    summary = (
        f"{measurements['tensors']} tensors of one update through {measurements['path']} agree with the "
        f"float64 reference, {len(measurements['gradients'])} gradients and "
        f"{kinds.get('parameter', {}).get('tensors', 0)} updated parameters among them (worst error "
        f"{worst:.0%} of its bound); {len(measurements['self_test'])} seeded faults were caught and located."
    )
    told = (
        f"With packed rows and fused attention the path was not run: {packed['why']}."
        if "why" in packed
        else f"With packed rows and fused attention {packed['tensors']} tensors agree, too (worst "
        f"{packed['worst_budget']:.0%})."
    )
    return Judgement(status=Status.PASS, reasons=(summary, told, *_repeatability(measurements)))


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
        reasons=(*reasons, *_repeatability(measurements)),
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
    told = f"Two runs differ, first in {differing[0]}: set {DETERMINISM}."
    return (told,)


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


def device_name(facet: Mapping[str, Any]) -> str:
    """torch's name of the cell's first device: the simulated one is an NPU to torch."""
    return "cpu" if facet.get("kind") == "cpu" else "npu:0"
