"""The device satisfies the constants of the precision contracts, and a device that does not is noticed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from harness.numerics.calibration.constants_program import LENGTHS, measure  # noqa: E402 - needs the guard above


def test_the_device_keeps_the_contracts_constants(npu_device: str) -> None:
    beyond = [row for row in measure(npu_device) if not row.holds]
    assert beyond == []


@pytest.mark.parametrize(
    ("holder", "name", "broken"),
    [
        (torch, "exp", {"exp_ulp"}),
        (torch, "log", {"log_ulp"}),
        (torch, "sqrt", {"sqrt_ulp"}),
        (torch, "div", {"division_ulp"}),
        (torch.Tensor, "sum", {f"sum_growth_{length}" for length in LENGTHS}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_function_in_bf16_is_seen(
    npu_device: str, monkeypatch: pytest.MonkeyPatch, holder: object, name: str, broken: set[str]
) -> None:
    function = getattr(holder, name)
    monkeypatch.setattr(holder, name, lambda *given: function(*given).bfloat16().float())
    assert {row.constant for row in measure(npu_device) if not row.holds} == broken
