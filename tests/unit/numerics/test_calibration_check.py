"""A calibration records the constants of any device and reports which of them are beyond the contract."""

from __future__ import annotations

import json
from dataclasses import replace

from mutants import REGRESSIONS

from harness.numerics.calibration.calibration_check import ARTIFACT, budgets, judge, run
from harness.numerics.calibration.calibration_measurements import DeviceConstant
from harness.numerics.loss.loss_measurements import REQUIRED, ROBUSTNESS, LossCaseOutcome, LossStatus
from harness.outcome import Status


def test_a_calibration_records_constants_and_budgets_as_an_artifact(context):
    measured = run(context)
    record = json.loads((context.workdir / measured.artifacts[ARTIFACT]).read_text())
    assert record["schema"]["name"] == "npu-matrix.numerics-calibration"
    assert [row["constant"] for row in record["constants"]] == ["exp_ulp"]
    groups = {(row["group"], row["contract"]) for row in record["groups"]}
    assert {("policy", "fp32"), ("policy", "bf16-io"), ("advantage", "fp32")} <= groups
    assert all(row["median_budget"] <= row["worst_budget"] <= 1 for row in record["groups"])
    assert judge(measured.measurements, {}).status is Status.PASS


def test_a_device_out_of_contract_is_recorded_not_failed(context):
    context.cell.candidate = REGRESSIONS["exp-bf16"]()
    context.cell.constants = (
        DeviceConstant(constant="exp_ulp", measured=9e4, contract=4.0, holds=False),
        DeviceConstant(constant="sqrt_ulp", measured=None, contract=3.0, holds=False),
    )
    measured = run(context)
    judgement = judge(measured.measurements, {})
    assert judgement.status is Status.PASS
    assert "beyond the contract: exp_ulp, sqrt_ulp" in judgement.reasons[0]
    worst = {row.group: row for row in measured.measurements.calibration.groups}["policy"]
    assert worst.outside > 0
    assert worst.worst_budget > 1


def test_a_device_that_hangs_is_no_calibration(context):
    context.cell.timed_out = True
    measured = run(context)
    assert judge(measured.measurements, {}).status is Status.FAIL


def test_cases_nobody_promised_do_not_count():
    case = LossCaseOutcome(
        name="policy/x",
        kind="policy",
        severity=ROBUSTNESS,
        status=LossStatus.FAIL,
        reasons=(),
        budget=1e300,
        scale=None,
    )
    assert budgets([case, replace(case, severity=REQUIRED, status=LossStatus.UNSUPPORTED)]) == ()
