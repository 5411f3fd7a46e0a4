"""In-cell program: measures the arithmetic constants of a device that the contracts assume.

    python -m harness.numerics.calibration.constants_program --device npu:0 --out constants.json

Errors are differences from float64 on the host, in units in the last place as a contract counts them (twice
the unit roundoff, relative to the result).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from harness.cell_program.torch_device import device_facts
from harness.numerics.arithmetic.precision_contract import FP32, Array
from harness.numerics.calibration.calibration_measurements import DeviceConstant, DeviceConstants
from harness.serialisation import json_object

POINTS = 1 << 16
LENGTHS = (16, 256, 4096, 65536)
"""Lengths of the sums: a reduction in one vector register, in one tile, over several tiles, over a
micro-batch."""

ROWS = 16


def measure(device: str) -> list[DeviceConstant]:
    """The constants of the device."""
    if device.startswith("npu"):
        import_module("torch_npu")
    torch = import_module("torch")
    rng = np.random.default_rng(0)

    def on_device(function: Callable[..., Any], *arrays: Array) -> Array:
        tensors = [torch.from_numpy(array.astype(np.float32)).to(device) for array in arrays]
        return np.asarray(function(*tensors).cpu().double().numpy())

    positive = _float32(np.exp(rng.uniform(-20, 20, POINTS)))
    other = _float32(np.exp(rng.uniform(-20, 20, POINTS)))
    rows = [
        *_exponential(lambda x: on_device(torch.exp, x)),
        _function("log", _ulps(on_device(torch.log, positive), np.log(positive), at_least=1.0)),
        _function("sqrt", _ulps(on_device(torch.sqrt, positive), np.sqrt(positive))),
        _function("division", _ulps(on_device(torch.div, positive, other), positive / other)),
    ]
    for length in LENGTHS:
        terms = _float32(rng.uniform(0, 1, (ROWS, length)))
        rows.append(_sum(length, terms, on_device(lambda x: x.sum(-1), terms)))
    return rows


def _exponential(exp: Callable[[Array], Array]) -> list[DeviceConstant]:
    """The error near zero, and how it grows with the exponent."""
    near = _float32(np.linspace(-1, 1, POINTS))
    far = _float32(np.concatenate([np.linspace(-20, -1, POINTS // 2), np.linspace(1, 20, POINTS // 2)]))
    base = _ulps(exp(near), np.exp(near))
    growth = np.maximum(_ulps(exp(far), np.exp(far)) - base.max(), 0.0) / np.abs(far)
    return [
        _constant("exp_ulp", base.max(), FP32.exp_ulp + FP32.exp_ulp_per_unit),
        _constant("exp_ulp_per_unit", growth.max(), FP32.exp_ulp_per_unit),
    ]


def _function(name: str, ulps: Array) -> DeviceConstant:
    return _constant(f"{name}_ulp", ulps.max(), FP32.function_ulp)


def _sum(length: int, terms: Array, sums: Array) -> DeviceConstant:
    """How the error of a sum grows, in unit roundoffs of the sum of magnitudes."""
    exact = terms.sum(-1)
    growth = np.abs(sums - exact) / (FP32.unit_sum * exact)
    return _constant(f"sum_growth_{length}", growth.max(), FP32.growth(length) + 1.0)


def _constant(name: str, measured: float, contract: float) -> DeviceConstant:
    found = float(f"{float(measured):.4g}")
    # A value that is not finite violates every contract, and JSON has no number for it.
    known = found if np.isfinite(found) else None
    return DeviceConstant(
        constant=name,
        measured=known,
        contract=round(float(contract), 4),
        holds=known is not None and known <= float(contract),
    )


def _ulps(got: Array, exact: Array, at_least: float = 0.0) -> Array:
    return np.asarray(np.abs(got - exact) / (FP32.ulp * np.maximum(np.abs(exact), at_least)))


def _float32(values: Array) -> Array:
    return values.astype(np.float32).astype(np.float64)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.numerics.calibration.constants_program",
        description="measure a device's arithmetic",
    )
    parser.add_argument("--device", default="npu:0", help="npu:0, cpu, cuda:0")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    rows = measure(arguments.device)
    report = DeviceConstants(device=device_facts(arguments.device), constants=tuple(rows))
    arguments.out.write_text(json.dumps(json_object(report)), encoding="utf-8")
    print(
        f"{len(rows)} constants on {arguments.device}, {sum(row.holds for row in rows)} within the contract"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
