from __future__ import annotations

import json

import pytest

from harness.cell_program import torch_device
from harness.cell_program.torch_device import device_facts
from harness.evidence import FACTS_VARIABLE, Runtime, evidence_of
from harness.outcome import Evidence


@pytest.fixture
def runtime(monkeypatch):
    """Sets the device facts that the runtime of the process reports."""
    return lambda kind: monkeypatch.setattr(torch_device, "runtime_kind", lambda: kind)


@pytest.mark.parametrize("kind", [Runtime.CANN, Runtime.SIMULATED, Runtime.NONE])
def test_what_the_launcher_says_of_a_simulation_is_taken(runtime, kind):
    runtime(kind)
    facts = device_facts("npu:0", {FACTS_VARIABLE: json.dumps({"simulated": True, "soc": "Ascend910B3"})})
    assert facts.simulated
    assert facts.soc == "Ascend910B3"
    assert evidence_of(facts) is Evidence.SIMULATED


@pytest.mark.parametrize(
    ("kind", "evidence"),
    [
        (Runtime.CANN, Evidence.HARDWARE),
        (Runtime.SIMULATED, Evidence.SIMULATED),
        (Runtime.NONE, Evidence.SIMULATED),
    ],
)
@pytest.mark.parametrize("told", [{}, {"simulated": False}, {"simulated": False, "runtime": "cann"}])
def test_the_runtime_outweighs_a_launcher_that_denies_a_simulation(runtime, kind, evidence, told):
    runtime(kind)
    facts = device_facts("npu:0", {FACTS_VARIABLE: json.dumps({"soc": "Ascend910B3", **told})})
    assert facts.runtime is kind
    assert evidence_of(facts) is evidence


@pytest.mark.parametrize("told", ["", "not json", "[1]"])
def test_a_damaged_variable_promotes_nothing(told):
    assert evidence_of(device_facts("cpu", {FACTS_VARIABLE: told})) is Evidence.CPU


def test_a_cpu_beside_a_real_runtime_is_a_cpu(runtime):
    runtime(Runtime.CANN)
    assert evidence_of(device_facts("cpu", {})) is Evidence.CPU
