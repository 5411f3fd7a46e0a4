"""Calibration: records the properties of a device's arithmetic without judging it.

Run it first on hardware that nobody has measured yet. The constants of the contracts come from documentation;
a calibration shows how far the device is from them, and which share of its tolerance each group of cases
uses.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from harness.cell_program.program_run import ProgramFailure, Unsupported, cell_device, run_in_cell
from harness.check import Check, TaskContext
from harness.errors import InfrastructureError
from harness.measurements import read_shape
from harness.numerics.calibration.calibration_measurements import (
    CALIBRATION_FORMAT,
    BudgetGroup,
    CalibrationMeasured,
    CalibrationRecord,
    DeviceConstants,
)
from harness.numerics.checks import FACETS
from harness.numerics.loss import loss_check
from harness.numerics.loss.loss_check import LossResult
from harness.numerics.loss.loss_measurements import LossCaseOutcome, LossMeasured, LossStatus
from harness.outcome import Judgement, Measured, Status, Tier
from harness.serialisation import json_object

ARTIFACT = "calibration.json"
CONSTANTS_PROGRAM = "harness.numerics.calibration.constants_program"
CONSTANTS_TIMEOUT_S = 120.0


def run(context: TaskContext) -> Measured[CalibrationMeasured]:
    """Run the loss battery and measure the constants of the device; the artifact `calibration.json` is the
    record."""
    battery = loss_check.run(context)
    record = calibration(battery.measurements, _constants(context))
    (context.workdir / ARTIFACT).write_text(json.dumps(json_object(record), indent=2), encoding="utf-8")
    return Measured(
        measurements=CalibrationMeasured(loss=battery.measurements, calibration=record),
        evidence=battery.evidence,
        artifacts={**battery.artifacts, ARTIFACT: ARTIFACT},
        environment=battery.environment,
    )


def _constants(context: TaskContext) -> DeviceConstants:
    out, device = context.workdir / "constants.json", cell_device(context)
    end = run_in_cell(
        context,
        CONSTANTS_PROGRAM,
        *("--device", device, "--out", str(out)),
        out=out,
        what="the measurement of the device's constants",
        timeout=CONSTANTS_TIMEOUT_S,
        on=device,
    )
    if isinstance(end, (ProgramFailure, Unsupported)):
        raise InfrastructureError(
            "the device's constants could not be measured",
            why=end.why if isinstance(end, Unsupported) else f"{end.ending}: {end.tail.strip()}",
            fix=f"run it by hand in the cell: python -m {CONSTANTS_PROGRAM} --device {device} --out FILE",
        )
    return read_shape(DeviceConstants, out)


def calibration(battery: LossResult, constants: DeviceConstants) -> CalibrationRecord:
    """The calibration record: device, constants, and the budget of each group of cases."""
    measured = battery if isinstance(battery, LossMeasured) else None
    return CalibrationRecord(
        device=constants.device,
        verl=measured.verl if measured else "",
        state=battery.state,
        constants=constants.constants,
        groups=budgets(measured.cases) if measured else (),
    )


def budgets(cases: Sequence[LossCaseOutcome]) -> tuple[BudgetGroup, ...]:
    """The required cases that were compared, grouped by operation and contract."""
    groups: dict[tuple[str, str], list[LossCaseOutcome]] = defaultdict(list)
    for case in cases:
        if case.status in {LossStatus.PASS, LossStatus.FAIL} and case.is_required:
            groups[case.kind, case.name.partition("@")[2] or "fp32"].append(case)
    return tuple(
        BudgetGroup(
            group=kind,
            contract=contract,
            cases=len(members),
            outside=sum(case.status is LossStatus.FAIL for case in members),
            median_budget=sorted(case.budget for case in members)[len(members) // 2],
            worst_budget=max(case.budget for case in members),
            worst_case=max(members, key=lambda case: case.budget).name,
        )
        for (kind, contract), members in sorted(groups.items())
    )


def judge(measurements: CalibrationMeasured, _params: Mapping[str, Any]) -> Judgement:
    """Pass if everything was recorded; nothing is compared with a limit."""
    if not isinstance(measurements.loss, LossMeasured):
        return loss_check.judge(measurements.loss, {})
    constants = measurements.calibration.constants
    beyond = [constant.constant for constant in constants if not constant.holds]
    compared = f"beyond the contract: {', '.join(beyond)}" if beyond else "all within the contract"
    return Judgement(status=Status.PASS, reasons=(f"{len(constants)} constants recorded, {compared}.",))


CALIBRATION = Check(
    name="calibration",
    tier=Tier.NUMERICS,
    question="Which constants does this device's arithmetic have?",
    facets=FACETS,
    run=run,
    judge=judge,
    measurements=CALIBRATION_FORMAT,
    needs=("environment",),
    device=True,
    timeout_s=loss_check.PROGRAM_TIMEOUT_S + loss_check.REFERENCE_TIMEOUT_S + 60.0 + CONSTANTS_TIMEOUT_S,
    expected_s=20.0,
)
"""Run by `npu-matrix numerics calibrate`. It is not part of a plan, because it cannot fail."""
