from __future__ import annotations

import json

import pytest

from harness.numerics import device
from harness.numerics.device import FACTS_VARIABLE, device_facts, evidence_of
from harness.outcome import Evidence


@pytest.mark.parametrize(
    ("facts", "evidence"),
    [
        ({"kind": "cpu", "simulated": False}, Evidence.CPU),
        ({"kind": "npu", "simulated": True}, Evidence.SIMULATED),
        ({"kind": "npu", "simulated": False}, Evidence.HARDWARE),
        ({"kind": "cuda", "simulated": False}, Evidence.CPU),
        ({}, Evidence.CPU),
    ],
)
def test_evidence(facts, evidence):
    assert evidence_of(facts) is evidence


def test_what_the_launcher_says_is_taken(monkeypatch):
    told = json.dumps({"simulated": True, "soc": "Ascend910B3"})
    monkeypatch.setattr(device, "runtime_is_real", lambda: True)
    facts = device_facts("npu:0", {FACTS_VARIABLE: told})
    assert facts["simulated"]
    assert facts["soc"] == "Ascend910B3"


def test_a_sentinel_outweighs_a_launcher_that_denies_it(monkeypatch):
    monkeypatch.setattr(device, "runtime_is_real", lambda: False)
    told = json.dumps({"simulated": False, "soc": "Ascend910B3"})
    assert evidence_of(device_facts("npu:0", {FACTS_VARIABLE: told})) is Evidence.SIMULATED


@pytest.mark.parametrize("told", ["", "not json", "[1]"])
def test_a_damaged_variable_promotes_nothing(told):
    assert evidence_of(device_facts("cpu", {FACTS_VARIABLE: told})) is Evidence.CPU


def test_an_npu_without_a_runtime_is_no_hardware(monkeypatch):
    monkeypatch.setattr(device, "RUNTIME_LIBRARY", "libnosuchruntime.so")
    told = json.dumps({"soc": "Ascend910B3"})
    assert evidence_of(device_facts("npu:0", {FACTS_VARIABLE: told})) is Evidence.SIMULATED
    assert evidence_of(device_facts("cpu", {})) is Evidence.CPU


def test_a_runtime_without_a_sentinel_is_hardware(monkeypatch):
    monkeypatch.setattr(device, "RUNTIME_LIBRARY", "libc.so.6")
    told = json.dumps({"soc": "Ascend910B3"})
    assert evidence_of(device_facts("npu:0", {FACTS_VARIABLE: told})) is Evidence.HARDWARE
    monkeypatch.setattr(device, "SENTINELS", ("printf",))
    assert evidence_of(device_facts("npu:0", {FACTS_VARIABLE: told})) is Evidence.SIMULATED
