"""The checks `device-sample` and `collectives`: the arithmetic of a device, and operations between cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.cell_program.program_run import ProgramFailure, Unsupported, cell_device, run_in_cell
from harness.check import Check, TaskContext
from harness.errors import InfrastructureError
from harness.evidence import evidence_of
from harness.measurements import read_shape
from harness.outcome import Evidence, Judgement, Measured, Status, Tier
from harness.rollout.contact.contact_measurements import (
    COLLECTIVES_FORMAT,
    SAMPLE_FORMAT,
    CollectivesMeasured,
    SampleMeasured,
)

#: What the environment of a cell depends on; the programs read nothing else.
FACETS = (
    "pins",
    "platform",
    "verl_tree",
    "patches[verl]",
    "patches[vllm_ascend]",
    "patches[others]",
    "device",
)
SAMPLE_TIMEOUT_S, COLLECTIVES_TIMEOUT_S = 600.0, 300.0
#: Cards of the check `collectives`.
CARDS = 2
MAX_REASONS = 8
SAMPLE_REMEDY = (
    "Run the check again. If the result is the same, the device or its driver is wrong, or the precision "
    "contract is: `npu-matrix numerics calibrate` records all constants."
)
LINK_REMEDY = (
    "Check the links with `hccn_tool -i CARD -link -g` and `npu-matrix doctor`, then run the check again."
)


def run_sample(context: TaskContext) -> Measured[SampleMeasured | ProgramFailure]:
    """Measure the constants and the operators of the device in the cell."""
    out, device = context.workdir / "sample.json", cell_device(context)
    return _measured(
        context,
        SampleMeasured,
        "harness.rollout.contact.sample_program",
        ("--device", device, "--out", str(out)),
        timeout=SAMPLE_TIMEOUT_S,
    )


def run_collectives(context: TaskContext) -> Measured[CollectivesMeasured | ProgramFailure]:
    """Run collective operations between the cards of the task."""
    out = context.workdir / "collectives.json"
    arguments = ("--ranks", str(context.params["cards"]), "--folder", str(context.workdir), "--out", str(out))
    return _measured(
        context,
        CollectivesMeasured,
        "harness.rollout.contact.collective_program",
        arguments,
        timeout=COLLECTIVES_TIMEOUT_S,
    )


def _measured(
    context: TaskContext, shape: type[Any], module: str, arguments: Sequence[str], *, timeout: float
) -> Measured[Any]:
    out = context.workdir / arguments[-1]
    end = run_in_cell(
        context,
        module,
        *arguments,
        out=out,
        what=module.rpartition(".")[2],
        timeout=timeout,
        on=cell_device(context),
    )
    if isinstance(end, Unsupported):
        raise InfrastructureError("the device could not be measured in the cell", why=end.why)
    if isinstance(end, ProgramFailure):
        # No device was reported, so the only known evidence is that it ran on a CPU.
        return Measured(measurements=end, evidence=Evidence.CPU)
    measured = read_shape(shape, out)
    return Measured(
        measurements=measured,
        evidence=evidence_of(measured.device),
        artifacts={out.name: out.name},
    )


def judge_sample(measurements: SampleMeasured | ProgramFailure, _params: Mapping[str, Any]) -> Judgement:
    """Pass if all constants are within the contract, and all operators of the cell within their tolerance."""
    if isinstance(measurements, ProgramFailure):
        return _judge_failure("The measurement of the device", measurements)
    wrong = [*_wrong_constants(measurements), *_wrong_operators(measurements)]
    operators = [one for group in measurements.operators for one in group.operators if one.state != "absent"]
    constants = len(measurements.constants)
    if wrong:
        summary = (
            f"{len(wrong)} of {constants + len(operators)} measurements on {measurements.device.title} are "
            "beyond what the numerics checks assume."
        )
        return Judgement(
            status=Status.FAIL, reasons=(summary, *wrong[:MAX_REASONS]), remedies=(SAMPLE_REMEDY,)
        )
    if not constants or not operators:
        reason = f"{constants} constants and {len(operators)} operators were measured: too few to judge."
        return Judgement(status=Status.INCONCLUSIVE, reasons=(reason,), remedies=(SAMPLE_REMEDY,))
    worst = max(one.budget for one in operators)
    reason = (
        f"{constants} constants are within the contract, and {len(operators)} operators agree with float64 "
        f"(worst error {worst:.0%} of its tolerance)."
    )
    return Judgement(status=Status.PASS, reasons=(reason,))


def _wrong_constants(measurements: SampleMeasured) -> list[str]:
    return [
        f"{one.constant} is {'not finite' if one.measured is None else f'{one.measured:g}'}; "
        f"the contract allows {one.contract:g}."
        for one in measurements.constants
        if not one.holds
    ]


def _wrong_operators(measurements: SampleMeasured) -> Iterator[str]:
    for group in measurements.operators:
        for one in group.operators:
            if one.state == "raised":
                yield f"{one.case} in {group.dtype} raises: {(one.message.splitlines() or [''])[0]}"
            # NaN is never within the tolerance.
            elif one.state == "measured" and not one.budget <= 1:
                yield f"{one.case} in {group.dtype} is off by {one.budget:.3g} times its tolerance."


def judge_collectives(
    measurements: CollectivesMeasured | ProgramFailure, params: Mapping[str, Any]
) -> Judgement:
    """Pass if all operations gave the exact result on as many cards as the check asks for."""
    if isinstance(measurements, ProgramFailure):
        return _judge_failure("The collective operations", measurements)
    wrong = [f"{one.name}: {one.wrong}." for one in measurements.results if one.wrong]
    simulated = evidence_of(measurements.device) is not Evidence.HARDWARE
    cards = len(set(measurements.devices))
    if cards < int(params["cards"]) and not simulated:
        wrong.append(f"The ranks used {cards} cards, not {params['cards']}.")
    if wrong:
        return Judgement(status=Status.FAIL, reasons=tuple(wrong[:MAX_REASONS]), remedies=(LINK_REMEDY,))
    if not measurements.results:
        return Judgement(status=Status.INCONCLUSIVE, reasons=("No collective operation was run.",))
    reason = (
        f"{len(measurements.results)} operations between {measurements.ranks} ranks are exact; an all-reduce "
        f"sends {measurements.gigabytes_per_second:g} GB/s from each."
    )
    return Judgement(status=Status.PASS, reasons=(reason,))


def _judge_failure(what: str, failure: ProgramFailure) -> Judgement:
    return Judgement(
        status=Status.FAIL,
        reasons=(f"{what} {failure.ending}.", *failure.last_line),
        remedies=("Read the end of the task's log: `npu-matrix triage LOG` names known causes.",),
    )


CONTACT_CHECKS: tuple[Check, ...] = (
    Check(
        name="device-sample",
        tier=Tier.NUMERICS,
        question="Is the arithmetic of this device as exact as the numerics checks assume?",
        facets=FACETS,
        run=run_sample,
        judge=judge_sample,
        measurements=SAMPLE_FORMAT,
        needs=("environment",),
        device=True,
        timeout_s=SAMPLE_TIMEOUT_S + 60.0,
        expected_s=20.0,
    ),
    Check(
        name="collectives",
        tier=Tier.NUMERICS,
        question="Are collective operations between two cards exact?",
        facets=FACETS,
        run=run_collectives,
        judge=judge_collectives,
        measurements=COLLECTIVES_FORMAT,
        needs=("environment",),
        params={"cards": CARDS},
        device=True,
        timeout_s=COLLECTIVES_TIMEOUT_S + 60.0,
        expected_s=15.0,
    ),
)
