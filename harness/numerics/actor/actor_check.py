"""The checks `actor` and `actor-bf16`: compare one update through verl's actor with float64, tensor by
tensor.

The tolerance of a tensor is measured: eight runs perturb every operator by up to the error that the contract
allows. The tolerance is the largest distance from the exact run, times the safety factor of the contract
(`stochastic_arithmetic`, `actor_reference`). Gradients are compared as vectors for each parameter, because a
comparison of norms would not detect a wrong sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cell_program.program_run import (
    CPU_REFERENCE,
    ProgramFailure,
    Unsupported,
    cell_device,
    run_in_cell,
    run_reference,
)
from harness.cell_program.self_test import judge_self_test
from harness.check import TaskContext
from harness.evidence import evidence_of
from harness.measurements import read_shape
from harness.numerics.actor.actor_measurements import ActorDeviceRun, ActorMeasured, OtherPath, PackedRows
from harness.numerics.actor.gradient_resolution import (
    detectable_error,
    judge_resolution,
    unobservable_reason,
)
from harness.numerics.arithmetic.unbounded_operators import (
    agreement_reason,
    caveat_reason,
    judge_guessed,
    list_operators,
)
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.serialisation import json_object

PROGRAM = "harness.numerics.actor.actor_program"
REFERENCE_TIMEOUT_S = 240.0
DEVICE_TIMEOUT_S = 300.0

DIVERGED_REMEDY = (
    "Look at the first tensor: tensors are listed in the order in which they are computed, and all tensors "
    "before it are correct."
)
MATMUL_REMEDY = (
    "Either partial sums have a low precision, or the matmul used other operands than those passed. Look "
    "for a setting of the matrix unit, such as a reduced-precision reduction."
)
DETERMINISM = "HCCL_DETERMINISTIC=true, CLOSE_MATMUL_K_SHIFT=1 and torch.use_deterministic_algorithms(True)"
"""From verl's docs/ascend_tutorial, ascend_consistency."""

ActorOutcome = ActorMeasured | ProgramFailure | Unsupported


def run(context: TaskContext) -> Measured[ActorOutcome]:
    """For each actor class that this verl trains with: compute the reference on a CPU without torch_npu, then
    run the update on the device, with the same packages."""
    measured = _run_path(context, "")
    default = measured.measurements
    if not isinstance(default, ActorMeasured):
        return measured
    others = []
    artifacts = dict(measured.artifacts)
    for path in default.reference.paths[1:]:
        other = _run_path(context, path)
        others.append(OtherPath(path=path, outcome=_without_cpu_failure(other.measurements)))
        artifacts |= other.artifacts
    return replace(measured, measurements=replace(default, others=tuple(others)), artifacts=artifacts)


def _without_cpu_failure(outcome: ActorOutcome) -> ActorOutcome:
    """A failure on the CPU of an actor class that verl does not use by default becomes `Unsupported`, because
    it says nothing about the device."""
    if isinstance(outcome, ProgramFailure) and outcome.on == CPU_REFERENCE:
        return Unsupported(why=" ".join(["Not run, because it fails on a CPU too.", *outcome.last_line]))
    return outcome


def _run_path(context: TaskContext, path: str) -> Measured[ActorOutcome]:
    # Planning imports this module, but not numpy.
    from harness.numerics.actor.actor_case import DEFAULT_SEED
    from harness.numerics.actor.actor_compare import compare
    from harness.numerics.actor.actor_reference import load_reference

    settings = [
        f"--seed={context.params.get('seed', DEFAULT_SEED)}",
        f"--path={path}",
        f"--compute={context.params.get('compute', 'float32')}",
    ]
    suffix = f"-{path}" if path else ""
    reference_file = context.workdir / f"reference{suffix}.npz"
    device_file = context.workdir / f"device{suffix}.json"
    referenced = run_reference(
        context,
        PROGRAM,
        *("--role=reference", f"--out={reference_file}", *settings),
        out=reference_file,
        what=CPU_REFERENCE,
        timeout=REFERENCE_TIMEOUT_S,
    )
    if isinstance(referenced, (ProgramFailure, Unsupported)):
        return not_measured(referenced)
    device = cell_device(context)
    updated = run_in_cell(
        context,
        PROGRAM,
        *("--role=device", f"--device={device}", f"--reference={reference_file}", f"--out={device_file}"),
        *settings,
        out=device_file,
        what="the actor's update",
        timeout=DEVICE_TIMEOUT_S,
        on=device,
    )
    if isinstance(updated, (ProgramFailure, Unsupported)):
        return not_measured(updated, reference_file)
    found = read_shape(ActorDeviceRun, device_file)
    return Measured(
        measurements=compare(load_reference(reference_file), found, referenced.seconds + updated.seconds),
        evidence=evidence_of(found.device),
        artifacts={file.name: file.name for file in (reference_file, device_file)},
        environment={"verl": found.verl, "device": json_object(found.device)},
    )


def not_measured(outcome: ProgramFailure | Unsupported, *files: Path) -> Measured[Any]:
    """The measurements of a program that failed. It reported no device, so the evidence is only "ran on a
    CPU"."""
    return Measured(
        measurements=outcome, evidence=Evidence.CPU, artifacts={file.name: file.name for file in files}
    )


def judge(measurements: ActorOutcome, _params: Mapping[str, Any]) -> Judgement:
    """Pass if no tensor diverges with any actor class, a divergence would have been detected, and every
    injected fault was detected where it was injected."""
    judged = [_judge_path(measurements)]
    skipped: list[str] = []
    for other in measurements.others if isinstance(measurements, ActorMeasured) else ():
        judgement = _judge_path(other.outcome)
        reasons = tuple(f"{other.path}: {reason}" for reason in judgement.reasons)
        if judgement.status is Status.UNSUPPORTED:
            skipped += reasons
        else:
            judged.append(replace(judgement, reasons=reasons))
    worst = min(judged, key=lambda judgement: WORST_FIRST.index(judgement.status))
    equally_bad = [judgement for judgement in judged if judgement.status is worst.status]
    return replace(
        worst, reasons=(*(reason for judgement in equally_bad for reason in judgement.reasons), *skipped)
    )


WORST_FIRST = (Status.FAIL, Status.INCONCLUSIVE, Status.UNSUPPORTED, Status.PASS)


def _judge_path(measurements: ActorOutcome) -> Judgement:
    if isinstance(measurements, Unsupported):
        return Judgement(status=Status.UNSUPPORTED, reasons=(measurements.why,))
    if isinstance(measurements, ProgramFailure):
        return _judge_program_failure(measurements)
    ill_posed = _judge_ill_posed(measurements)
    if ill_posed:
        return ill_posed
    if measurements.matmuls.wrong:
        return _judge_matmuls(measurements)
    if measurements.diverged or measurements.missing:
        return _judge_diverged(measurements)
    packed = measurements.packed
    if packed.diverged or packed.error:
        return _judge_packed(packed)
    if not (packed.tensors or packed.skipped):
        return Judgement(
            status=Status.INCONCLUSIVE, reasons=("The update with packed rows gave no tensor to compare.",)
        )
    return (
        judge_self_test(measurements.self_test, *([] if packed.fault_caught else ["the one in packed rows"]))
        or judge_resolution(measurements)
        or judge_guessed(measurements.reference.unbounded_operators, measurements.guessed)
        or _pass(measurements)
    )


def _pass(measurements: ActorMeasured) -> Judgement:
    packed, kinds = measurements.packed, measurements.kinds
    worst = max(kind.worst_budget for kind in kinds.values())
    parameters = kinds["parameter"].tensors if "parameter" in kinds else 0
    summary = (
        f"{measurements.tensors} tensors of one update through {measurements.path} agree with the float64 "
        f"reference, among them {len(measurements.gradients)} gradients and {parameters} updated parameters. "
        f"The worst error is {worst:.0%} of its tolerance. {detectable_error(measurements)} All "
        f"{len(measurements.self_test)} injected faults were caught and located."
    )
    with_packed_rows = (
        f"The update with packed rows and fused attention was not run: {packed.skipped}."
        if packed.skipped
        else f"With packed rows and fused attention, {packed.tensors} tensors agree (worst error "
        f"{packed.worst_budget:.0%} of its tolerance)."
    )
    reasons = [summary, with_packed_rows]
    if measurements.matmuls.count:
        reasons.append(
            f"All {measurements.matmuls.count} matmuls of linear layers ({measurements.matmuls.elements} "
            "elements) have exactly the values that bf16 operands with fp32 accumulation give."
        )
    reasons += unobservable_reason(measurements)
    reasons += agreement_reason(measurements.reference.unbounded_operators)
    if measurements.finding:
        reasons.append(f"Finding: {measurements.finding}.")
    return Judgement(status=Status.PASS, reasons=(*reasons, *_repeatability(measurements)))


def _judge_ill_posed(measurements: ActorMeasured) -> Judgement | None:
    """Inconclusive if rounding alone can select another branch of the loss."""
    slack = measurements.reference.slack
    if slack is None or slack > 1:
        return None
    reason = (
        f"The case is ill-posed: rounding in {measurements.compute} can change a clip decision, so a correct "
        f"device may differ. The nearest log-ratio is {slack:.3g} rounding errors away from its clip bound."
    )
    return Judgement(
        status=Status.INCONCLUSIVE, reasons=(reason,), remedies=("Compute in fp32, or use another seed.",)
    )


def _judge_matmuls(measurements: ActorMeasured) -> Judgement:
    first = measurements.matmuls.wrong[0]
    what = (
        f"Matmuls on {measurements.device.device} have other values than bf16 operands with fp32 "
        "accumulation give."
    )
    which = (
        f"The first is {first.what} of {first.name} (pass {first.call + 1}): {first.wrong} of "
        f"{first.elements} elements are wrong, by up to {first.worst:.3g} units in the last place of bf16."
    )
    return Judgement(status=Status.FAIL, reasons=(what, which), remedies=(MATMUL_REMEDY,))


def _judge_packed(packed: PackedRows) -> Judgement:
    """The update is correct with padded rows, but wrong or impossible with packed rows."""
    if packed.error:
        reason = f"With packed rows and fused attention the update raised {packed.error}."
    else:
        what = {"gradient": "the gradient of ", "parameter": "the updated "}.get(packed.kind, "")
        reason = (
            f"With packed rows and fused attention {packed.diverged} of {packed.tensors} tensors are wrong; "
            f"the first is {what}{packed.first}. With padded rows all tensors are correct."
        )
    return Judgement(
        status=Status.FAIL,
        reasons=(reason,),
        remedies=(
            (
                "Fused attention, or the code that removes padding from the batch, is wrong. "
                "use_remove_padding=False avoids both."
            ),
        ),
    )


def _judge_diverged(measurements: ActorMeasured) -> Judgement:
    reasons = [
        (
            f"{measurements.diverged} of {measurements.tensors} tensors of the actor's update are wrong on "
            f"{measurements.device.device}."
        ),
    ]
    first = measurements.first
    if first is not None:
        reasons.append(f"The first to diverge is {first.sentence}: {_amount(first.budget)}.")
        if first.operators:
            operators = list_operators(first.operators)
            reasons.append(f"Operators that ran since the last correct tensor: {operators}.")
    gradients = [entry for entry in measurements.gradients if entry.budget is None or entry.budget > 1]
    if gradients:
        names = ", ".join(dict.fromkeys(entry.name for entry in gradients[:3]))
        reasons.append(
            f"{len(gradients)} of {len(measurements.gradients)} gradients are wrong ({names}, ...)."
        )
    if measurements.missing:
        reasons.append(
            f"The device did not compute {len(measurements.missing)} of the results, for example "
            f"{measurements.missing[0]}."
        )
    return Judgement(
        status=Status.FAIL,
        reasons=(
            *reasons,
            *caveat_reason(measurements.reference.unbounded_operators),
            *_repeatability(measurements),
        ),
        remedies=(DIVERGED_REMEDY,),
    )


def _amount(budget: float | None) -> str:
    return (
        "it is not finite or has the wrong shape"
        if budget is None
        else f"its error is {budget:.3g} times its tolerance"
    )


def _repeatability(measurements: ActorMeasured) -> tuple[str, ...]:
    if not measurements.differing:
        return ()
    first = measurements.differing[0]
    return (f"Two runs on the device differ, first in {first}. If runs must be equal, set {DETERMINISM}.",)


def _judge_program_failure(failure: ProgramFailure) -> Judgement:
    return Judgement(
        status=Status.FAIL,
        reasons=(f"The actor's update on {failure.on} {failure.ending}.", *failure.last_line),
        remedies=(
            "Read the task's log. It says which operator the device does not support."
            if failure.state == "crashed"
            else "Read the task's log. Run the check again to see whether the failure is repeatable.",
        ),
    )
