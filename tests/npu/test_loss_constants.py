"""The constants that the contracts assume hold on this device, and a device that breaks one is seen."""

from __future__ import annotations

import pytest

from harness.numerics.constants import measure

torch = pytest.importorskip("torch")


def test_the_device_keeps_the_contracts_constants(npu_device: str) -> None:
    beyond = [row for row in measure(npu_device) if not row["holds"]]
    assert beyond == []


def test_an_exponential_in_bf16_is_seen(npu_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exp = torch.exp
    monkeypatch.setattr(torch, "exp", lambda x: exp(x).bfloat16().float())
    broken = {row["constant"] for row in measure(npu_device) if not row["holds"]}
    assert broken == {"exp_ulp"}
