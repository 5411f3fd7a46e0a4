"""The first questions to a device: each wrong answer is red, and its place is named."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.cell_program.program_run import ProgramFailure
from harness.cell_program.torch_device import half_format
from harness.evidence import DeviceFacts, Runtime
from harness.numerics.calibration.calibration_measurements import DeviceConstant
from harness.outcome import Status
from harness.plan.tasks.demand import resource_demand
from harness.rollout.contact.collective_program import operations
from harness.rollout.contact.contact_checks import (
    CARDS,
    CONTACT_CHECKS,
    judge_collectives,
    judge_sample,
)
from harness.rollout.contact.contact_measurements import (
    CollectiveResult,
    CollectivesMeasured,
    SampledOperators,
    SampleMeasured,
)
from harness.rollout.operators.operator_result import OperatorMeasurement

NPU = DeviceFacts(device="npu:0", kind="npu", runtime=Runtime.CANN, soc="Ascend910B3", count=2)
RIGHT = OperatorMeasurement(
    case="aten::mm", operator="aten::mm", family="matmul", state="measured", budget=0.3
)
SAMPLE = SampleMeasured(
    device=NPU,
    constants=(DeviceConstant(constant="exp_ulp", measured=0.5, contract=4.0, holds=True),),
    operators=(SampledOperators(dtype="float32", operators=(RIGHT, replace(RIGHT, state="absent"))),),
    seconds=1.0,
)
COLLECTIVES = CollectivesMeasured(
    device=NPU,
    ranks=2,
    devices=("npu:0", "npu:1"),
    results=(CollectiveResult(name="broadcast", wrong=""),),
    gigabytes_per_second=20.0,
    seconds=1.0,
)
PARAMS = {"cards": CARDS}


def _with(operator: OperatorMeasurement) -> SampleMeasured:
    return replace(SAMPLE, operators=(SampledOperators(dtype="float32", operators=(RIGHT, operator)),))


def test_a_device_within_the_contract_passes() -> None:
    judgement = judge_sample(SAMPLE, {})
    assert judgement.status is Status.PASS
    (reason,) = judgement.reasons
    assert "1 operators agree with float64 (worst error 30% of its tolerance)" in reason


@pytest.mark.parametrize(
    ("sample", "named"),
    [
        (_with(replace(RIGHT, budget=1.01)), "aten::mm in float32 is off by 1.01 times its tolerance."),
        (
            _with(replace(RIGHT, budget=float("nan"))),
            "aten::mm in float32 is off by nan times its tolerance.",
        ),
        (
            _with(replace(RIGHT, state="raised", message="EZ9999\nlong")),
            "aten::mm in float32 raises: EZ9999",
        ),
        (
            replace(
                SAMPLE,
                constants=(DeviceConstant(constant="log_ulp", measured=None, contract=3.0, holds=False),),
            ),
            "log_ulp is not finite; the contract allows 3.",
        ),
    ],
)
def test_each_deviation_fails_and_is_named(sample: SampleMeasured, named: str) -> None:
    judgement = judge_sample(sample, {})
    assert judgement.status is Status.FAIL
    assert named in judgement.reasons


def test_a_sample_of_nothing_is_no_pass() -> None:
    absent = _with(replace(RIGHT, state="absent"))
    nothing = replace(absent, operators=(SampledOperators(dtype="float32", operators=()),))
    assert judge_sample(nothing, {}).status is Status.INCONCLUSIVE
    assert judge_sample(replace(SAMPLE, constants=()), {}).status is Status.INCONCLUSIVE
    assert judge_collectives(replace(COLLECTIVES, results=()), PARAMS).status is Status.INCONCLUSIVE


def test_collectives_are_exact_on_as_many_cards_as_asked_for() -> None:
    assert judge_collectives(COLLECTIVES, PARAMS).status is Status.PASS
    wrong = replace(COLLECTIVES, results=(CollectiveResult(name="broadcast", wrong="rank 1: x"),))
    assert judge_collectives(wrong, PARAMS).reasons == ("broadcast: rank 1: x.",)
    one_card = replace(COLLECTIVES, devices=("npu:0", "npu:0"))
    assert judge_collectives(one_card, PARAMS).status is Status.FAIL
    # The simulated device has one card for both ranks.
    simulated = replace(one_card, device=replace(NPU, simulated=True, runtime=Runtime.SIMULATED))
    assert judge_collectives(simulated, PARAMS).status is Status.PASS


def test_a_hang_is_a_failure_of_the_device() -> None:
    hung = ProgramFailure(state="hung", returncode=-9, tail="EI0006: Getting socket times out")
    for judgement in (judge_sample(hung, {}), judge_collectives(hung, PARAMS)):
        assert judgement.status is Status.FAIL
        assert "EI0006" in judgement.reasons[1]


def test_collectives_lease_two_cards_and_the_sample_one() -> None:
    facets = {"device": {"kind": "npu", "soc": "Ascend910B3", "cann": "8.5.0", "count": 1}}
    cards = {check.name: resource_demand(check, facets).resources["NPU"] for check in CONTACT_CHECKS}
    assert cards == {"device-sample": 1.0, "collectives": 2.0}


@pytest.mark.parametrize(
    ("npu", "half"),
    [
        (SimpleNamespace(is_bf16_supported=lambda: True), "bfloat16"),
        (SimpleNamespace(is_bf16_supported=lambda: False), "float16"),
        # torch_npu before 2.1 does not say.
        (SimpleNamespace(), "bfloat16"),
    ],
)
def test_a_device_is_measured_in_the_16_bit_format_that_it_has(npu: object, half: str) -> None:
    """A 310P has no bfloat16: nothing of it would be right there, and the check said that the card is not."""
    assert half_format(SimpleNamespace(npu=npu)) == half
    assert [name for name in operations(half) if "16" in name] == [f"all_reduce sum {half}"]
