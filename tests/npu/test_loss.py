"""verl's own losses on the device, compared with the float64 reference in each case. Runs inside a cell."""

from __future__ import annotations

import numpy as np
import pytest

from harness.numerics.loss.candidate import CandidateResult, evaluate_one
from harness.numerics.loss.cases.loss_battery import default_battery
from harness.numerics.loss.cases.loss_case import LossCase
from harness.numerics.loss.judge_case import judge
from harness.numerics.loss.loss_faults import LOSS_FAULTS, SELF_TEST_CASES, LossFault, inject_fault
from harness.numerics.loss.loss_measurements import REQUIRED, LossStatus
from harness.numerics.loss.release_objectives import release_objective
from harness.numerics.loss.verl_adapters import VerlCandidate

BATTERY = {case.name: case for case in default_battery()}


@pytest.fixture(scope="session")
def verl(npu_device: str) -> VerlCandidate:
    """verl on the device under test."""
    pytest.importorskip("verl")
    return VerlCandidate(npu_device)


def evaluated(verl: VerlCandidate, case: LossCase) -> CandidateResult:
    result = evaluate_one(verl, case)
    if result.unsupported:
        pytest.skip(result.unsupported)
    return result


@pytest.mark.parametrize("name", [case.name for case in BATTERY.values() if case.severity == REQUIRED])
def test_loss(verl: VerlCandidate, name: str) -> None:
    """The result is that of the standard objective, or of the one that this release is known to compute."""
    case = BATTERY[name]
    result = evaluated(verl, case)
    actual, _ = release_objective(verl.version).released_case(case)
    verdicts = [judge(case, result), judge(actual, result)]
    assert any(verdict.ok for verdict in verdicts), verdicts[-1].reasons


@pytest.mark.parametrize("name", SELF_TEST_CASES)
@pytest.mark.parametrize("fault", LOSS_FAULTS, ids=lambda fault: fault.id)
def test_a_seeded_fault_is_caught(verl: VerlCandidate, fault: LossFault, name: str) -> None:
    """A wrong loss fails on this device."""
    case = BATTERY[name]
    with inject_fault(fault, verl):
        result = evaluated(verl, case)
    verdict = judge(case, result)
    assert verdict.status is LossStatus.FAIL
    assert not result.error


def test_evaluating_twice_gives_the_same_bits(verl: VerlCandidate) -> None:
    """A device whose losses differ from run to run cannot be bisected."""
    for name in SELF_TEST_CASES:
        first, second = (evaluated(verl, BATTERY[name]) for _ in range(2))
        assert first.value == second.value
        assert first.gradient is not None
        assert second.gradient is not None
        assert np.array_equal(first.gradient, second.gradient)
