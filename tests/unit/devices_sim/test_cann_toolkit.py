"""The files from which programs read the versions of CANN and of the driver."""

from __future__ import annotations

import os
import platform
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.cell_program.built_environment import CellDevice
from harness.devices.sim.runtime_build.cann_toolkit import offer_npu_smi, write_toolkit
from harness.devices.sim.start.sim_environment import simulated_environment
from harness.errors import InputError


def test_processes_find_the_toolkit_that_was_written(tmp_path: Path) -> None:
    device = CellDevice(kind="sim", cann="8.3.RC2")
    assert "ASCEND_HOME_PATH" not in simulated_environment(tmp_path, device)
    home = write_toolkit(tmp_path, "8.3.RC2")
    environment = simulated_environment(tmp_path, device)
    assert environment["ASCEND_HOME_PATH"] == str(home)
    assert Path(environment["ASCEND_OPP_PATH"]).is_dir()
    info = home / f"{platform.machine()}-linux" / "ascend_toolkit_install.info"
    assert "version=8.3.RC2\n" in info.read_text()
    assert "ASCEND_HOME_PATH" not in simulated_environment(tmp_path, CellDevice(kind="sim", cann="8.5.0"))


def test_npu_smi_tells_the_driver_as_verl_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(write_toolkit(tmp_path, "8.5.0")))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    offer_npu_smi()
    command = ["npu-smi", "info", "-t", "board", "-i", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if "Software Version" in line)
    assert line.split(":")[1].strip() == "25.5.0"
    assert subprocess.run(["npu-smi", "info"], capture_output=True).returncode == 1


def test_a_real_npu_smi_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "npu-smi"
    real.touch(0o755)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(write_toolkit(tmp_path, "8.5.0")))
    monkeypatch.setenv("PATH", str(tmp_path))
    offer_npu_smi()

    assert os.environ["PATH"] == str(tmp_path)


def test_writers_at_the_same_time_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert len({pool.submit(write_toolkit, tmp_path, "8.5.0").result() for _ in range(8)}) == 1
    assert [path.name for path in (tmp_path / "toolkit").iterdir()] == ["8.5.0"]


@pytest.mark.parametrize("version", ["../x", "8.5.0/..", "", "latest"])
def test_only_a_version_names_a_folder(tmp_path: Path, version: str) -> None:
    with pytest.raises(InputError):
        write_toolkit(tmp_path, version)
