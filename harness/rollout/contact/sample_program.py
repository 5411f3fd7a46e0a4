"""In-cell program: measures the constants of a device, and a sample of its operators against float64.

python -m harness.rollout.contact.sample_program --device npu:0 --out sample.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from harness.cell_program.torch_device import device_facts, half_format
from harness.numerics.calibration import constants_program
from harness.rollout.contact.contact_measurements import SampledOperators, SampleMeasured
from harness.serialisation import json_object


def measure(device: str) -> SampleMeasured:
    """The sample of the device."""
    started = time.monotonic()
    constants = constants_program.measure(device)
    torch = import_module("torch")
    # Imports torch, which only cells have.
    from harness.rollout.operators.operator_battery import Battery

    # The formats in which verl and its rollout engines compute on this device.
    dtypes = ("float32", half_format(torch) if device.startswith("npu") else "bfloat16")
    operators = tuple(
        SampledOperators(dtype=dtype, operators=Battery(device, getattr(torch, dtype)).measure())
        for dtype in dtypes
    )
    return SampleMeasured(
        device=device_facts(device),
        constants=tuple(constants),
        operators=operators,
        seconds=round(time.monotonic() - started, 3),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command line, see the module."""
    parser = argparse.ArgumentParser(prog="python -m harness.rollout.contact.sample_program")
    parser.add_argument("--device", default="npu:0", help="npu:0, cpu")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    sample = measure(arguments.device)
    arguments.out.write_text(json.dumps(json_object(sample)), encoding="utf-8")
    measured = [one for group in sample.operators for one in group.operators if one.state != "absent"]
    print(f"{len(sample.constants)} constants and {len(measured)} operators on {arguments.device}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
