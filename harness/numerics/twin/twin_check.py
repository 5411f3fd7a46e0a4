"""The check `twin`: compares ten steps of sampling and training on the device with a float64 copy on the CPU.

Both use random numbers drawn on the host. Within the horizon (`twin_program.horizon`) they therefore sample
the same tokens, and every number of every step has a tolerance, measured as for the check `actor`. The first
number outside of its tolerance gives the step and the module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.cell_program.program_run import (
    ProgramFailure,
    Unsupported,
    cell_device,
    run_in_cell,
    run_reference,
)
from harness.cell_program.self_test import judge_self_test, self_test_summary
from harness.check import TaskContext
from harness.evidence import evidence_of
from harness.measurements import read_shape
from harness.numerics.actor.actor_check import not_measured
from harness.numerics.arithmetic.unbounded_operators import (
    agreement_reason,
    caveat_reason,
    judge_guessed,
)
from harness.numerics.twin.twin_measurements import (
    TwinDeviceRun,
    TwinMeasured,
    TwinRefused,
)
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.serialisation import json_object

PROGRAM = "harness.numerics.twin.twin_program"
REFERENCE_TIMEOUT_S = 900.0
DEVICE_TIMEOUT_S = 900.0
"""Twenty times the run time of each on an idle machine, so that a busy machine is not mistaken for a hang."""
PARAMS = ("seed", "steps", "dtype", "sampling", "update")
MAX_NAMED = 8

TwinOutcome = TwinMeasured | TwinRefused | ProgramFailure | Unsupported


def run(context: TaskContext) -> Measured[TwinOutcome]:
    """Run the float64 copy on a CPU without torch_npu, then the steps on the device, with the same
    packages."""
    # Planning imports this module, but not numpy.
    from harness.numerics.twin.twin_case import cannot_compare_reason
    from harness.numerics.twin.twin_compare import compare
    from harness.numerics.twin.twin_program import case_of, load_twin_reference

    settings = {name: context.params[name] for name in PARAMS if name in context.params}
    refused = cannot_compare_reason(case_of(settings))
    if refused:
        return Measured(measurements=TwinRefused(why=refused), evidence=Evidence.CPU)
    reference_file, device_file = (context.workdir / name for name in ("twin.npz", "twin.json"))
    case = ("--case", json.dumps(settings))
    referenced = run_reference(
        context,
        PROGRAM,
        *("--role", "reference", "--out", str(reference_file)),
        *case,
        out=reference_file,
        what="the float64 copy",
        timeout=REFERENCE_TIMEOUT_S,
    )
    if isinstance(referenced, (ProgramFailure, Unsupported)):
        return not_measured(referenced)
    device = cell_device(context)
    followed = run_in_cell(
        context,
        PROGRAM,
        *("--role", "device", "--device", device, "--reference", str(reference_file)),
        *("--out", str(device_file), *case),
        out=device_file,
        what="the twin run",
        timeout=DEVICE_TIMEOUT_S,
        on=device,
    )
    if isinstance(followed, (ProgramFailure, Unsupported)):
        return not_measured(followed, reference_file)
    found = read_shape(TwinDeviceRun, device_file)
    seconds = referenced.seconds + followed.seconds
    return Measured(
        measurements=compare(load_twin_reference(reference_file), found, seconds),
        evidence=evidence_of(found.device),
        artifacts={file.name: file.name for file in (reference_file, device_file)},
        environment={"verl": found.verl, "device": json_object(found.device)},
    )


def judge(measurements: TwinOutcome, _params: Mapping[str, Any]) -> Judgement:
    """Pass if all planned steps are within the horizon, nothing diverges, and the self-test passed."""
    if isinstance(measurements, Unsupported):
        return Judgement(status=Status.UNSUPPORTED, reasons=(measurements.why,))
    if isinstance(measurements, TwinRefused):
        return _judge_incomparable(measurements.why)
    if isinstance(measurements, ProgramFailure):
        return Judgement(
            status=Status.FAIL,
            reasons=(f"The twin run on {measurements.on} {measurements.ending}.", *measurements.last_line),
            remedies=("Read the task's log. Run the check again to see whether the failure is repeatable.",),
        )
    if measurements.diverged:
        return _judge_diverged(measurements)
    if measurements.steps < measurements.planned_steps:
        return _judge_incomparable(_short_horizon(measurements))
    operators = measurements.reference.unbounded_operators
    return (
        judge_self_test(measurements.self_test)
        or judge_guessed(operators, measurements.guessed)
        or Judgement(status=Status.PASS, reasons=(_pass_summary(measurements), *agreement_reason(operators)))
    )


def _pass_summary(measurements: TwinMeasured) -> str:
    worst = max((step for step in measurements.worst_by_step if step is not None), default=0.0)
    return (
        f"In {measurements.steps} steps through {measurements.path} the device samples the tokens of the "
        f"float64 copy, and {measurements.tensors} tensors agree (worst error {worst:.0%} of its tolerance); "
        f"{self_test_summary(measurements.self_test)}. {_horizon(measurements)}"
    )


def _horizon(measurements: TwinMeasured) -> str:
    known = measurements.reference.horizon
    slack = min(known.slack[: known.horizon], default=0.0)
    return (
        f"Horizon: in the first {known.horizon} steps rounding cannot change a decision (rounding errors "
        f"grow {measurements.reference.rounding.growth}-fold per step and would have to be {slack:.3g} times "
        "larger)."
    )


def _short_horizon(measurements: TwinMeasured) -> str:
    known = measurements.reference.horizon
    what = {"tokens": "a sampled token", "clip": "a clip decision"}[known.limited_by]
    return (
        f"the horizon is {known.horizon} of {measurements.planned_steps} steps: in step {known.horizon + 1} "
        f"rounding alone could change {what} (differences of the parameters grow "
        f"{measurements.reference.rounding.growth}-fold per step)"
    )


def _judge_incomparable(why: str) -> Judgement:
    return Judgement(
        status=Status.INCONCLUSIVE,
        reasons=(f"The device cannot be compared with a float64 copy of the run: {why}.",),
        remedies=(
            "Let the host draw the noise, compute in fp32, widen the clip range, or lower the learning rate.",
        ),
    )


def _judge_diverged(measurements: TwinMeasured) -> Judgement:
    reasons = [
        f"{measurements.diverged} tensors on {measurements.device.device} differ from the float64 copy."
    ]
    first = measurements.first
    if first is not None:
        amount = "" if first.budget is None else f", {first.budget:.3g} times what rounding explains"
        reasons.append(f"The first is {first.title} of {measurements.steps}{amount}.")
    return Judgement(
        status=Status.FAIL,
        reasons=(
            *reasons,
            *caveat_reason(measurements.reference.unbounded_operators),
            _horizon(measurements),
        ),
        remedies=(
            (
                "If the first step is wrong, an operator is wrong; the check `actor` reports it. If only "
                "later steps are wrong, look at state that is passed from step to step, such as optimizer "
                "state or weights, or at a branch that is rarely taken."
            ),
        ),
    )
