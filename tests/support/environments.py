"""Measurements of the check `environment` for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.cell_program.built_environment import (
    CellDevice,
    EnvironmentBuilt,
    EnvironmentLocation,
    EnvironmentProbe,
    ImportedModule,
    PatchedFile,
    ProbedDevice,
)
from harness.evidence import Runtime
from harness.serialisation import json_object

GOOD_PROBE = EnvironmentProbe(
    packages={"torch": "2.13.0+cpu", "Ray": "2.0"},
    files={"verl/core.py": "aa"},
    modules={
        "torch": ImportedModule(file="/c/site-packages/torch/__init__.py"),
        "ray": ImportedModule(file="/c/site-packages/ray/__init__.py"),
    },
    patched=(
        PatchedFile(
            path="verl/core.py",
            module="verl.core",
            expected="aa",
            file="/c/site-packages/verl/core.py",
            digest="aa",
            state="patched",
        ),
    ),
    device=ProbedDevice(kind="npu", count=1, sum_of_ones=4.0, simulated=True, runtime=Runtime.SIMULATED),
)
GOOD = EnvironmentBuilt(
    requested_device=CellDevice(kind="sim"),
    python="/c/bin/python",
    prefix="/c",
    runtime="/r",
    site_packages="/c/site-packages",
    digest="d",
    reused=False,
    expected={"torch": "2.13.0+cpu", "ray": "2.0"},
    left_out={},
    built_here=(),
    patched={"verl/core.py": "aa"},
    probe=GOOD_PROBE,
    seconds={},
)
"""A simulated cell whose environment matches its lock and its patches."""


def environment_built(**changes: Any) -> EnvironmentBuilt:
    """`GOOD` with other values."""
    return replace(GOOD, **changes)


def environment_probe(**changes: Any) -> EnvironmentProbe:
    """The probe of `GOOD` with other values."""
    return replace(GOOD_PROBE, **changes)


def location_json(**changes: Any) -> dict[str, Any]:
    """The JSON of the location of `GOOD` with other values, as the ledger stores it."""
    location = EnvironmentLocation(
        requested_device=GOOD.requested_device, python=GOOD.python, prefix=GOOD.prefix
    )
    return json_object(replace(location, **changes))
