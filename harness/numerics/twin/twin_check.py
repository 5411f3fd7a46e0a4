"""The check `twin`: ten steps of sampling and training on the device beside a float64 twin on the CPU.

Both draw the host's random numbers, so within the horizon (`twin_run.horizon`) they sample the same tokens
and every number of every step has a tolerance, measured as for the check `actor`. The first number outside
names step and module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.cell_program.ending import MEASURED, ended, failure, last_words, require_setup
from harness.cell_program.torch_device import device_name
from harness.check import TaskContext
from harness.numerics.actor import actor_check
from harness.numerics.actor.tensor_recorder import FORWARD
from harness.numerics.arithmetic import unbounded_operators
from harness.numerics.arithmetic.unbounded_operators import explained_only_by_guess
from harness.outcome import Judgement, Measured, Status

PROGRAM = "harness.numerics.twin.twin_program"
REFERENCE_TIMEOUT_S = 900.0
DEVICE_TIMEOUT_S = 900.0
"""Twenty times what both take on a quiet machine: a busy one is not a device that hangs."""
BLIND = "blind"
PARAMS = ("seed", "steps", "dtype", "sampling", "update")
MOST_NAMED = 8


def run(context: TaskContext) -> Measured:
    """The exact twin on a CPU without torch_npu, then the twin on the device, with the same packages."""
    from harness.errors import EXIT_NOTHING_SELECTED
    from harness.numerics.twin.twin_case import cannot_compare_reason
    from harness.numerics.twin.twin_program import TWIN_REFERENCE_FORMAT, case_of

    settings = {name: context.params[name] for name in PARAMS if name in context.params}
    refused = cannot_compare_reason(case_of(settings))
    if refused:
        return actor_check.without(context, {"state": BLIND, "why": refused})
    reference_file, device_file = (context.workdir / name for name in ("twin.npz", "twin.json"))
    given = ("--case", json.dumps(settings))
    referenced = actor_check.reference_process(
        context, PROGRAM, *("--out", str(reference_file)), *given, timeout=REFERENCE_TIMEOUT_S
    )
    if referenced.returncode == EXIT_NOTHING_SELECTED:
        return actor_check.without(
            context, {"state": actor_check.UNSUPPORTED, "why": referenced.tail.strip()}
        )
    require_setup(referenced, "the CPU twin")
    if referenced.returncode != 0 or not reference_file.is_file():
        return actor_check.without(context, {**failure(referenced), "on": "the CPU twin"})
    device = device_name(context.facets.get("device", {}))
    followed = context.in_cell(
        PROGRAM,
        *("--role", "device", "--device", device, "--reference", str(reference_file)),
        *("--out", str(device_file), *given),
        timeout=DEVICE_TIMEOUT_S,
    )
    require_setup(followed, "the twin run")
    if followed.returncode != 0 or not device_file.is_file():
        return actor_check.without(context, {**failure(followed), "on": device}, reference_file)
    seconds = referenced.seconds + followed.seconds
    return actor_check.held_together(reference_file, device_file, seconds, TWIN_REFERENCE_FORMAT, compare)


def compare(reference: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Which numbers of which step are outside their tolerance, the first of them, and each step's worst."""
    found = _outside(reference, facts["twin"])
    told, twin = reference["facts"], facts["twin"]
    worst = _worst_by_step(reference, twin)
    return {
        "steps": facts["steps"],
        "wanted": len(told["slack"]),
        "horizon": told["horizon"],
        "limited_by": told["limited_by"],
        "slack": told["slack"],
        "noise": told["noise"],
        "growth": told["growth"],
        "worst_by_step": worst,
        "worst_budget": None if None in worst else max((step for step in worst if step), default=0.0),
        "tensors": len(twin["errors"]),
        "bypassed": sum(_is_bypassed(label) for label in twin["missing"]),
        "diverged": len(found),
        "first": found[0] if found else None,
        "named": found[:MOST_NAMED],
        "guessed": [
            _said(_entry(label, None)) for label in explained_only_by_guess(reference, twin["errors"])
        ],
        "self_test": self_test(reference, facts["faults"]),
    }


def _outside(reference: Mapping[str, Any], twin: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is outside its tolerance, in the order of its making; other tokens come first in their step."""
    found = [
        {"step": step, "kind": "tokens", "name": "the sampled tokens", "part": "", "budget": None}
        for step, rows in enumerate(twin["tokens"], start=1)
        if rows
    ]
    missing = {label for label in twin["missing"] if not _is_bypassed(label)}
    for label in reference["labels"]:
        if label in missing:
            found.append(_entry(label, None))
        elif label in twin["errors"]:
            budget = _budget(twin["errors"][label], reference["tolerances"][label])
            if budget is None or budget > 1:
                found.append(_entry(label, budget))
    return sorted(found, key=lambda entry: (entry["step"], entry["kind"] == "tokens"))


def _entry(label: str, budget: float | None) -> dict[str, Any]:
    # A metric's name may have slashes of its own.
    step, kind, _, named = label.split("/", 3)
    name, _, part = named.rpartition("/")
    return {"step": int(step) + 1, "kind": kind, "name": name, "part": part, "budget": budget}


def _is_bypassed(label: str) -> bool:
    """A module that only the CPU calls (a fused kernel replaces it on the device) has no counterpart."""
    return label.split("/")[1] == FORWARD


def _budget(error: float | None, tolerance: float) -> float | None:
    return None if error is None else float(f"{error / max(tolerance, 1e-300):.4g}")


def _worst_by_step(reference: Mapping[str, Any], twin: Mapping[str, Any]) -> list[float | None]:
    """Largest error over tolerance in each step; None where something is not finite or missing."""
    worst: list[float | None] = [0.0] * len(twin["tokens"])
    for label, error in twin["errors"].items():
        step = int(label.split("/")[0])
        budget, so_far = _budget(error, reference["tolerances"][label]), worst[step]
        worst[step] = None if budget is None or so_far is None else max(so_far, budget)
    return worst


def self_test(reference: Mapping[str, Any], faults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each seeded fault within the horizon: caught means found at its very step and place, or, where the
    contract permits it, not flagged."""
    from harness.numerics.twin.twin_faults import TWIN_FAULTS

    report = []
    for fault in TWIN_FAULTS:
        if fault.id not in faults:
            continue
        found = _outside(reference, faults[fault.id])
        located = bool(found) and found[0]["step"] == fault.first + 1 and found[0]["name"] == fault.place
        report.append(
            {
                "fault": fault.id,
                "what": fault.what,
                "place": fault.place,
                "step": fault.first + 1,
                "caught": not found if fault.legal else located,
                "legal": fault.legal,
                "first": found[0] if found else None,
            }
        )
    return report


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Pure: pass when all wanted steps lie within the horizon, nothing diverges and the seeded faults were
    told apart."""
    if measurements["state"] == actor_check.UNSUPPORTED:
        return Judgement(status=Status.UNSUPPORTED, reasons=(measurements["why"],))
    if measurements["state"] == BLIND:
        return _blind(measurements["why"])
    if measurements["state"] != MEASURED:
        return Judgement(
            status=Status.FAIL,
            reasons=(
                f"The twin run on {measurements['on']} {ended(measurements)}.",
                *last_words(measurements["tail"]),
            ),
            remedies=("Read the task's log; run the check again to see whether it is stable.",),
        )
    if measurements["diverged"]:
        return _judge_diverged(measurements)
    if measurements["steps"] < measurements["wanted"]:
        return _blind(_short_horizon(measurements))
    missed = [entry for entry in measurements["self_test"] if not entry["caught"]]
    if missed or not measurements["self_test"]:
        names = ", ".join(
            f"flagged {entry['fault']}, which is legal" if entry["legal"] else f"missed {entry['fault']}"
            for entry in missed
        )
        return Judgement(
            status=Status.INCONCLUSIVE,
            reasons=(f"The self-test {names or 'missed every fault'}, so green would mean nothing.",),
            remedies=("Look at self_test in the measurements; report it with the artifacts.",),
        )
    unexplained = unbounded_operators.judge_guessed(measurements)
    if unexplained:
        return unexplained
    worst = max(measurements["worst_by_step"])
    caught = sum(not entry["legal"] for entry in measurements["self_test"])
    summary = (
        f"{measurements['steps']} steps through {measurements['path']} sample the tokens of the float64 twin "
        f"and agree with it in {measurements['tensors']} tensors (worst error {worst:.0%} of its bound); "
        f"{caught} seeded faults were caught with step and module, a legal rounding was not flagged. "
        f"{_horizon(measurements)}"
    )
    return Judgement(
        status=Status.PASS, reasons=(summary, *unbounded_operators.agreement_reason(measurements))
    )


def _horizon(measurements: Mapping[str, Any]) -> str:
    slack = min(measurements["slack"][: measurements["horizon"]], default=0.0)
    return (
        f"Horizon: at least {measurements['horizon']} steps (roundings grow {measurements['growth']}-fold a "
        f"step and stay {slack:.3g} times below what would change a decision)."
    )


def _short_horizon(measurements: Mapping[str, Any]) -> str:
    what = {"tokens": "a sampled token", "clip": "a clip decision"}[measurements["limited_by"]]
    return (
        f"the horizon is {measurements['horizon']} of {measurements['wanted']} steps: in step "
        f"{measurements['horizon'] + 1} rounding alone could change {what} (differences of the parameters "
        f"grow {measurements['growth']}-fold a step)"
    )


def _blind(why: str) -> Judgement:
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=(f"A twin run is blind here: {why}.",),
        remedies=(
            "Let the host draw the noise, compute in fp32, widen the clip range, or lower the learning rate.",
        ),
    )


def _said(entry: Mapping[str, Any]) -> str:
    part = f"the {entry['part']} of " if entry["part"] else ""
    what = {"gradient": "the gradient of ", "parameter": "the updated "}.get(entry["kind"], part)
    return f"{what}{entry['name']} in step {entry['step']}"


def _judge_diverged(measurements: Mapping[str, Any]) -> Judgement:
    first, where = measurements["first"], measurements["device"]["device"]
    amount = "" if first["budget"] is None else f", {first['budget']:.3g} times what rounding explains"
    return Judgement(
        status=Status.FAIL,
        reasons=(
            f"{measurements['diverged']} tensors differ from the float64 twin's on {where}.",
            f"The first is {_said(first)} of {measurements['steps']}{amount}.",
            *unbounded_operators.caveat_reason(measurements),
            _horizon(measurements),
        ),
        remedies=(
            (
                "Wrong in the first step: an operator, which the check `actor` names. Wrong only later: what "
                "a step leaves behind, such as optimizer state or weights, or a branch taken rarely."
            ),
        ),
    )
