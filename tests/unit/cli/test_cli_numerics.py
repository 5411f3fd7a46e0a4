"""`npu-matrix numerics`: what is wrong with a target is said with what to do; results have their exit code."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import numerics_command
from harness.errors import InfrastructureError, InputError
from harness.evidence import DeviceFacts
from harness.numerics.calibration.calibration_measurements import (
    CALIBRATION_FORMAT,
    CalibrationMeasured,
    CalibrationRecord,
    DeviceConstant,
)
from harness.numerics.loss.loss_measurements import (
    LOSS_FORMAT,
    REQUIRED,
    LossCaseOutcome,
    LossMeasured,
    LossReferenceFacts,
    LossStatus,
    SourceFile,
)
from harness.outcome import Evidence, Judgement, Outcome, State, Status, Tier
from harness.settings import load_settings
from harness.workspace.execution import numerics_measurement

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def invoke(tmp_path):
    settings = load_settings(
        {
            "state": str(tmp_path / "state"),
            "reports": str(tmp_path / "reports"),
            "cache": str(tmp_path / "c"),
        },
        {},
        REPOSITORY,
    )

    def run(*args: str):
        return CliRunner().invoke(
            numerics_command.command, args, obj=settings, standalone_mode=False, catch_exceptions=True
        )

    return run


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no target is given"),
        (("--target", "0.9.1"), "not a target"),
        (("--target", "trl==1.0"), "not a target"),
        (("--target", "verl==99.0"), "no cell with verl matches"),
        (("--target", "verl==0.8.0", "--device", "sim"), "its cells with this version are on npu"),
        (("--python", sys.executable, "--device", "sim"), "--python needs --device npu or cpu"),
    ],
)
def test_a_target_that_cannot_be_is_explained(invoke, args, message):
    result = invoke("battery", *args)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


def test_a_cell_that_is_not_built_names_the_command_that_builds_it(invoke):
    result = invoke("battery", "--target", "verl==0.9.1")
    assert isinstance(result.exception, InfrastructureError)
    assert "npu-matrix run --only verl-0-9-1-sim" in str(result.exception)
    assert "--check environment" in str(result.exception)


DEVICE = DeviceFacts(device="npu:0", kind="npu", soc="Ascend910B3", torch="2.7.1")
CASE = LossCaseOutcome(
    name="policy/x",
    kind="policy",
    severity=REQUIRED,
    status=LossStatus.FAIL,
    reasons=("value is off",),
    budget=3.0,
    scale=2.0,
)
LOSS = LossMeasured(
    seed=1,
    verl="0.9.1",
    cases=(CASE,),
    counts={"fail": 1},
    findings=(),
    worst_budget=0.0,
    self_test=(),
    device=DEVICE,
    core_algos=SourceFile(file="core_algos.py", digest="0"),
    capabilities=(),
    reference=LossReferenceFacts(python="3.11", numpy="2", frameworks_loaded=(), seconds=1.0),
    seconds={},
)
CALIBRATED = CalibrationMeasured(
    loss=LOSS,
    calibration=CalibrationRecord(
        device=DEVICE,
        verl="0.9.1",
        state="measured",
        constants=(DeviceConstant(constant="exp_ulp", measured=5.0, contract=4.0, holds=False),),
        groups=(),
    ),
)


@pytest.fixture
def measured(monkeypatch):
    def give(status: Status):
        monkeypatch.setattr(numerics_measurement, "measure_numerics", partial(measure, status))

    def measure(status: Status, _settings, check, _options):
        outcome = Outcome(
            key="k",
            check="loss",
            tier=Tier.NUMERICS,
            state=State.COMPLETED,
            evidence=Evidence.SIMULATED,
            facets={},
            measurements=CALIBRATION_FORMAT.write(CALIBRATED)
            if check.name == "calibration"
            else LOSS_FORMAT.write(LOSS),
        )
        judgement = Judgement(status=status, reasons=("1 of 1 loss cases are wrong on npu:0.",))
        return outcome, judgement

    return give


@pytest.mark.parametrize(("status", "code"), [(Status.PASS, 0), (Status.FAIL, 1), (Status.INCONCLUSIVE, 4)])
def test_the_exit_code_says_how_it_went(invoke, measured, status, code):
    measured(status)
    result = invoke("battery", "--target", "verl==0.9.1")
    assert result.return_value == code
    assert "policy/x" in result.output
    assert "evidence: simulated" in result.output


def test_json_has_a_schema_and_the_evidence(invoke, measured):
    measured(Status.FAIL)
    report = json.loads(invoke("battery", "--target", "verl==0.9.1", "--json").output)
    assert report["schema"] == {"name": "npu-matrix.numerics-battery", "version": 1}
    assert report["evidence"] == "simulated"
    assert report["cases"][0]["name"] == "policy/x"
    assert "measurements_version" not in report


def test_a_calibration_is_written_and_does_not_fail(invoke, measured, tmp_path):
    measured(Status.PASS)
    result = invoke("calibrate", "--target", "verl==0.9.1")
    assert result.return_value == 0
    assert "BEYOND" in result.output
    (file,) = (tmp_path / "state" / "calibration").iterdir()
    record = json.loads(file.read_text())
    assert record["evidence"] == "simulated"
    assert "simulated" in file.name
