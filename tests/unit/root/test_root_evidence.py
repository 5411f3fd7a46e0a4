from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from harness import evidence
from harness.evidence import Runtime, device_count, evidence_of, read_device_facts, runtime_kind
from harness.outcome import Evidence

NPU = {"kind": "npu", "runtime": "cann", "simulated": False}


def library(*symbols: str, devices: int | None = 1, error: int = 0) -> SimpleNamespace:
    """A fake loaded CANN runtime. devices: None if it lacks the function that counts devices."""

    def count(number: object) -> int:
        number._obj.value = devices  # type: ignore[attr-defined] - ctypes.byref's own attribute
        return error

    counts = {} if devices is None else {"aclrtGetDeviceCount": count}
    return SimpleNamespace(**counts, **dict.fromkeys(symbols, lambda: 1))


@pytest.mark.parametrize(
    ("loaded", "kind", "devices"),
    [
        pytest.param(library(devices=8), Runtime.CANN, 8, id="CANN with its devices"),
        pytest.param(library(devices=0), Runtime.NONE, 0, id="CANN where there is no NPU"),
        pytest.param(library(devices=3, error=507000), Runtime.NONE, 0, id="CANN that cannot count"),
        pytest.param(library(devices=None), Runtime.NONE, 0, id="something else under that name"),
        pytest.param(library("npu_sim_sentinel"), Runtime.SIMULATED, 1, id="ours"),
        pytest.param(library("fakecann_is_fake"), Runtime.SIMULATED, 1, id="the prototype's"),
        pytest.param(library("npu_sim_sentinel", devices=0), Runtime.SIMULATED, 0, id="ours, no device"),
    ],
)
def test_a_runtime_is_taken_for_cann_only_where_it_shows_a_device_and_no_sentinel(loaded, kind, devices):
    assert runtime_kind(loaded) is kind
    assert device_count(loaded) == devices


def test_without_a_runtime_there_is_none(monkeypatch):
    monkeypatch.setattr(evidence, "RUNTIME_LIBRARY", "libnosuchruntime.so")
    assert runtime_kind() is Runtime.NONE


def test_a_library_that_merely_loads_is_no_runtime():
    assert runtime_kind(ctypes.CDLL(None)) is Runtime.NONE


def test_a_stub_that_answers_without_counting_has_no_device():
    """The stub libraries of CANN return success, but write no result."""
    assert runtime_kind(SimpleNamespace(aclrtGetDeviceCount=lambda _number: 0)) is Runtime.NONE


@pytest.mark.parametrize(
    ("facts", "proved"),
    [
        ({}, Evidence.CPU),
        ({"kind": "cpu", "simulated": False}, Evidence.CPU),
        ({"kind": "cpu", "runtime": "cann"}, Evidence.CPU),
        ({"kind": "cuda", "simulated": False}, Evidence.CPU),
        (NPU, Evidence.HARDWARE),
        ({**NPU, "available": True}, Evidence.HARDWARE),
        ({**NPU, "available": False}, Evidence.CPU),
        ({**NPU, "simulated": True}, Evidence.SIMULATED),
        ({**NPU, "runtime": "simulated"}, Evidence.SIMULATED),
        ({**NPU, "runtime": "none"}, Evidence.CPU),
        ({**NPU, "runtime": "Cann"}, Evidence.CPU),
        ({"kind": "npu", "simulated": False}, Evidence.CPU),
        ({"kind": "npu"}, Evidence.CPU),
    ],
)
def test_hardware_has_to_be_shown(facts, proved):
    assert evidence_of(read_device_facts(facts)) is proved
