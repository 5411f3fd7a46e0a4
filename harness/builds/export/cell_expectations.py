"""The files with which an export checks a machine: a program, and what it expects for the cell."""

from __future__ import annotations

import json

from harness.builds.lock.cell_lock import CellLock
from harness.cell_program.built_environment import modules_to_import
from harness.devices.host.soc import published_driver
from harness.package import data_file, shipped_file

CHECK, EXPECTATIONS = "cell_check.py", "cell.json"


def check_files(lock: CellLock) -> dict[str, str]:
    """File name -> content: the program, a module that it imports, and what it expects."""
    return {
        CHECK: shipped_file(f"docker/{CHECK}").read_text("utf-8"),
        "cann_version.py": data_file("cell_program/cann_version.py").read_text("utf-8"),
        EXPECTATIONS: _expectations(lock),
    }


def _expectations(lock: CellLock) -> str:
    """The content of `cell.json`: versions of the machine's parts, and the packages to be installed."""
    on_npu = lock.on_npu
    cann = lock.axes.get("cann", "") if on_npu else ""
    driver = published_driver(cann)
    packages = {package.name: package.version for package in lock.packages}
    # A commit between releases has a version that only its build computes.
    packages |= {source.package: "" for source in lock.from_source}
    names = {name for name in packages if name != "torch-npu" or on_npu}
    content = {
        "cell": lock.cell,
        "python": lock.python_minor,
        "arch": lock.arch,
        "image": lock.base,
        "cann": cann,
        "driver": lock.axes.get("driver", "") if on_npu else "",
        "driver_at_least": list(driver.driver) if driver else [],
        "packages": packages,
        "omitted": sorted(lock.omitted),
        "modules": modules_to_import(names, "npu"),
        # torch_npu needs a driver, and torch in simulated cells the libraries of the simulation.
        "imports": ["torch"] if on_npu and "torch" in packages else [],
    }
    return json.dumps(content, indent=1) + "\n"
