"""Checks a machine before the packages of a cell are installed, and the environment afterwards.

    python3 cell_check.py before cell.json     Python, architecture, CANN and driver of this machine
    python3 cell_check.py after cell.json      the installed packages
    python3 cell_check.py device cell.json     whether the NPU computes what the CPU computes

It needs only Python 3.8 or later and `cann_version.py` next to it. Exit code 0: as the cell expects it; 1: a
check failed; 2: wrong usage, or the file of the cell cannot be read.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from cann_version import cann_folders, installed_version, version_in

ASCEND = Path(os.environ.get("ASCEND_ROOT", "/usr/local/Ascend"))
DRIVER = ASCEND / "driver/version.info"
# How some systems call an architecture -> its name in a cell.
MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}


@dataclass
class Check:
    """One property of the machine. why: why it matters. fix: what to do if it is wrong."""

    passed: bool
    what: str
    why: str = ""
    fix: str = ""

    def text(self) -> str:
        """One line if it passed, otherwise what, why and what to do."""
        if self.passed:
            return f"ok      {self.what}"
        return "\n".join(
            [
                f"FAILED  {self.what}",
                *([f"        why: {self.why}"] if self.why else []),
                *([f"        to do: {self.fix}"] if self.fix else []),
            ]
        )


def before(cell: dict[str, Any], options: argparse.Namespace) -> Iterator[Check]:
    """Python, architecture, CANN and driver of this machine."""
    if not options.other_python:
        yield _python(cell)
    machine = MACHINES.get(platform.machine(), platform.machine())
    yield Check(
        machine == cell["arch"],
        f"architecture {machine}; the cell is for {cell['arch']}",
        "the packages and their digests were chosen for the other architecture",
        "use a machine of that architecture (docker build --platform), or export a cell for this one",
    )
    if cell["cann"]:
        yield _cann(cell)
        if options.no_driver and not version_in(DRIVER):
            print("skipped driver: an installation needs none; `cell_check.py device` does")
        else:
            yield _driver(cell, "on a machine without an NPU: --no-driver")


def _python(cell: dict[str, Any]) -> Check:
    found = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return Check(
        found == cell["python"],
        f"Python {found} ({sys.executable}); the cell has {cell['python']}",
        "compiled packages are made for one minor version of Python",
        f"activate a virtual environment with Python {cell['python']}, for example: "
        f"uv venv --seed --python {cell['python']} cell && . cell/bin/activate",
    )


def _cann(cell: dict[str, Any]) -> Check:
    folders = cann_folders(os.environ, ASCEND)
    found = next(filter(None, map(installed_version, folders)), "")
    places = ", ".join(map(str, folders)) or f"ASCEND_HOME_PATH, ASCEND_TOOLKIT_HOME and {ASCEND}"
    return Check(
        release(found) == release(cell["cann"]),
        f"CANN {found or 'not found'} ({places}); the cell has {cell['cann']}",
        "torch_npu and compiled kernels are built against one CANN",
        f"install CANN {cell['cann']} and source its set_env.sh, use the base image {cell['image']}, "
        "or export a cell for the CANN of this machine",
    )


def _driver(cell: dict[str, Any], without: str) -> Check:
    """The driver of this machine, or the host of this container. without: what to do if there is none."""
    driver = version_in(DRIVER)
    oldest = ".".join(map(str, cell["driver_at_least"]))
    line = [int(part) for part in re.findall(r"\d+", driver)[:2]]
    if driver and cell["driver"] and driver.lower() != cell["driver"].lower():
        print(f"note    the source of this cell has driver {cell['driver']}, this machine {driver}")
    return Check(
        bool(driver) and line >= cell["driver_at_least"],
        f"driver {driver or 'not found'} ({DRIVER}); CANN {cell['cann']} is published with "
        f"{f'{oldest} or later' if oldest else 'any'}",
        "the runtime of CANN calls the driver",
        "install a newer driver and firmware, or export a cell with an older CANN" if driver else without,
    )


def after(cell: dict[str, Any], _options: argparse.Namespace) -> Iterator[Check]:
    """The installed packages, and whether the modules of `imports` can be imported."""
    wrong = list(_wrong_packages(cell["packages"]))
    yield Check(
        not wrong,
        f"{len(cell['packages']) - len(wrong)} of {len(cell['packages'])} packages as locked"
        + "".join(f"; {text}" for text in wrong),
        "a later installation replaced or removed packages, or the installation ended early",
        "install into an empty environment",
    )
    present = {_normal(one.metadata["Name"] or "") for one in metadata.distributions()}
    unwanted = sorted(present & set(cell["omitted"]))
    yield Check(
        not unwanted,
        f"packages of other hardware: {', '.join(unwanted) or 'none'}",
        "they hide modules of the same name, or load libraries that this device does not have",
        f"python3 -m pip uninstall {' '.join(unwanted)}",
    )
    for module in cell["modules"]:
        yield Check(importlib.util.find_spec(module) is not None, f"module {module} is installed")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    for module in cell["imports"]:
        yield _imported(module)


def _wrong_packages(packages: dict[str, str]) -> Iterator[str]:
    """Sentences about packages that are missing or have another version; "" stands for any version."""
    for name, version in sorted(packages.items()):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield f"{name} {version} is missing"
            continue
        # A build from source may add a local version, such as 0.11.0+empty.
        if version and version != found and version != found.partition("+")[0]:
            yield f"{name} is {found}, not {version}"


def device(cell: dict[str, Any], _options: argparse.Namespace) -> Iterator[Check]:
    """Whether the NPU computes what the CPU computes."""
    if not cell["cann"]:
        yield Check(False, "this cell has no NPU", "its device is the CPU or simulated", "use `after`")
        return
    yield _driver(
        cell, "start the container with the devices and the driver of the host, as the compose file does"
    )
    for module in ("torch", "torch_npu"):
        imported = _imported(module)
        yield imported
        if not imported.passed:
            return
    torch = importlib.import_module("torch")
    available = torch.npu.is_available()
    yield Check(
        available,
        f"torch_npu finds {torch.npu.device_count() if available else 0} NPUs",
        "no device of this machine can be used: it is not passed into the container, or another user has it",
        "look at npu-smi info and at the owner of /dev/davinci*",
    )
    if available:
        yield _product(torch)


def _product(torch: Any) -> Check:
    left = torch.arange(64, dtype=torch.float32).reshape(8, 8)
    try:
        same = torch.allclose((left.npu() @ left.npu()).cpu(), left @ left, rtol=1e-3)
        why = "the result differs"
    except RuntimeError as error:
        same, why = False, str(error)
    return Check(
        same,
        f"a matmul on {torch.npu.get_device_name(0)} equals that on the CPU",
        why,
        "compare the versions of driver, firmware and CANN; look into ~/ascend/log",
    )


def _imported(module: str) -> Check:
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - reported, whatever a module raises
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        return Check(
            False,
            f"import {module}",
            f"{type(root).__name__}: {root}",
            "source set_env.sh of CANN first; npu-matrix triage LOG explains the error",
        )
    return Check(True, f"import {module}")


def release(cann: str) -> str:
    """A CANN version for comparison: 8.3.RC1 and 8.3.rc1.beta1 are the same release."""
    text = cann.lower().replace("-", ".")
    return re.sub(r"\.?beta\.?\d+$", "", text) if "rc" in text else re.sub(r"beta\.?(\d+)", r"beta\1", text)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


STEPS = {"before": before, "after": after, "device": device}


def main() -> int:
    """Run one step and print its checks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=sorted(STEPS))
    parser.add_argument("cell", type=Path, help="the file cell.json of the export")
    parser.add_argument("--no-driver", action="store_true", help="before: a machine without an NPU")
    parser.add_argument("--other-python", action="store_true", help="before: do not check Python")
    options = parser.parse_args()
    try:
        cell = json.loads(options.cell.read_text("utf-8"))
    except (OSError, ValueError) as error:
        parser.error(f"{options.cell} cannot be read: {error}")
    failed = 0
    for check in STEPS[options.step](cell, options):
        print(check.text(), flush=True)
        failed += not check.passed
    if failed:
        print(f"{options.step}: {failed} checks failed for cell {cell['cell']}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
