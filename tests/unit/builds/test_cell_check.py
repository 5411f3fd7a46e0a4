"""The program in every export that checks a machine: each kind of wrong machine is refused with its remedy."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_lock_formats import lock

from harness.builds.export.cell_expectations import check_files

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """The files of an export for this Python and architecture, with CANN 8.5.0 and its driver installed."""
    made = replace(lock(tmp_path), python=HERE, arch=platform.machine())
    for name, text in check_files(made).items():
        (tmp_path / name).write_text(text)
    toolkit = tmp_path / "Ascend/cann/latest"
    info = toolkit / f"{platform.machine()}-linux/ascend_toolkit_install.info"
    for file, text in {
        info: "package_name=toolkit\nversion=8.5.0\n",
        tmp_path / "Ascend/driver/version.info": "Version=25.5.2\n",
    }.items():
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return tmp_path


def change(folder: Path, **values: Any) -> None:
    file = folder / "cell.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "ASCEND_ROOT": str(folder / "Ascend")}
    argv = [sys.executable, str(folder / "cell_check.py"), *arguments]
    if arguments[0] in {"before", "after", "device"}:
        argv.insert(3, str(folder / "cell.json"))
    return subprocess.run(argv, capture_output=True, text=True, env=environ)


def test_a_fitting_machine_passes(export: Path) -> None:
    done = check(export, "before")
    assert (done.returncode, done.stdout.count("ok      ")) == (0, 4), done.stdout


def test_another_python_is_refused(export: Path) -> None:
    change(export, python="3.7")
    done = check(export, "before")
    assert done.returncode == 1
    assert f"FAILED  Python {HERE} ({sys.executable}); the cell has 3.7" in done.stdout
    assert "to do: activate a virtual environment with Python 3.7" in done.stdout
    assert check(export, "before", "--other-python").returncode == 0


def test_another_architecture_is_refused(export: Path) -> None:
    change(export, arch="riscv64")
    done = check(export, "before")
    assert done.returncode == 1
    assert f"FAILED  architecture {platform.machine()}; the cell is for riscv64" in done.stdout


@pytest.mark.parametrize(("cell", "passes"), [("8.3.RC1", False), ("8.5.0", True)])
def test_another_cann_is_refused_with_its_place(export: Path, cell: str, passes: bool) -> None:
    change(export, cann=cell)
    done = check(export, "before")
    assert done.returncode == (0 if passes else 1)
    assert (
        f"CANN 8.5.0 ({export}/Ascend/cann/latest, {export}/Ascend/cann); the cell has {cell}" in done.stdout
    )
    assert (
        "to do: install CANN 8.3.RC1" in done.stdout and "quay.io/ascend/cann:" in done.stdout
    ) is not passes


def test_a_beta_of_a_release_candidate_counts_as_the_release_candidate(export: Path) -> None:
    info = export / f"Ascend/cann/latest/{platform.machine()}-linux/ascend_toolkit_install.info"
    info.write_text("version=8.3.RC1\n")
    change(export, cann="8.3.rc1.beta1", driver_at_least=[])
    assert check(export, "before").returncode == 0
    change(export, cann="8.3.rc1.alpha002")
    assert check(export, "before").returncode == 1


def test_no_cann_and_no_driver_are_refused(export: Path) -> None:
    (export / "Ascend").rename(export / "elsewhere")
    done = check(export, "before")
    assert done.returncode == 1
    assert f"CANN not found (ASCEND_HOME_PATH, ASCEND_TOOLKIT_HOME and {export}/Ascend)" in done.stdout
    assert f"driver not found ({export}/Ascend/driver/version.info)" in done.stdout
    assert "before: 2 checks failed for cell verl-0-7-1-4f7be5e8e382" in done.stderr
    assert "skipped driver" in check(export, "before", "--no-driver").stdout


def test_a_driver_that_is_too_old_is_refused(export: Path) -> None:
    (export / "Ascend/driver/version.info").write_text("Version=24.1.rc3\n")
    done = check(export, "before", "--no-driver")
    assert done.returncode == 1
    assert "FAILED  driver 24.1.rc3" in done.stdout
    assert "CANN 8.5.0 is published with 25.5 or later" in done.stdout


def test_wrong_missing_and_unwanted_packages_are_named(export: Path) -> None:
    nothing = {"modules": [], "imports": []}
    change(export, packages={"pytest": pytest.__version__}, omitted=[], **nothing)
    assert check(export, "after").returncode == 0
    change(
        export,
        packages={"pytest": "0.1", "no-such-package": "1"},
        omitted=["packaging"],
        modules=["no_module"],
        imports=["no_module"],
    )
    done = check(export, "after")
    assert done.returncode == 1
    assert (
        f"0 of 2 packages as locked; no-such-package 1 is missing; pytest is {pytest.__version__}, not 0.1"
        in done.stdout
    )
    assert "packages of other hardware: packaging" in done.stdout
    assert "FAILED  module no_module is installed" in done.stdout
    assert "why: ModuleNotFoundError" in done.stdout
    assert "after: 4 checks failed" in done.stderr


def test_a_probe_without_torch_or_without_npu_fails(export: Path) -> None:
    done = check(export, "device")
    assert done.returncode == 1
    assert "FAILED  import torch" in done.stdout
    change(export, cann="")
    done = check(export, "device")
    assert done.returncode == 1
    assert "FAILED  this cell has no NPU" in done.stdout


def test_a_file_that_cannot_be_read_is_wrong_usage(export: Path) -> None:
    (export / "cell.json").write_text("{")
    done = check(export, "before")
    assert done.returncode == 2
    assert "cell.json cannot be read" in done.stderr
