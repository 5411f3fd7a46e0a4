"""Variables of CANN that cells on an NPU of this host get."""

from __future__ import annotations

import os
from pathlib import Path

from harness.builds.cell.cann_variables import cann_variables
from harness.builds.cell.cell_command import cell_command
from harness.cell_program.built_environment import CellDevice, EnvironmentLocation


def set_env(root: Path) -> dict[str, str]:
    """What CANN's and ATB's set_env.sh set, with folders and variables of others beside it."""
    toolkit = root / "ascend-toolkit" / "latest"
    (root / "ascend-toolkit" / "8.5.0" / "lib64").mkdir(parents=True)
    toolkit.symlink_to("8.5.0")
    return {
        "ASCEND_TOOLKIT_HOME": str(toolkit),
        "ATB_HOME_PATH": str(root / "nnal" / "atb" / "latest"),
        "LD_LIBRARY_PATH": f"{toolkit}/lib64:/opt/mine/lib:{root}/nnal/atb/latest/lib::{toolkit}/../../../x",
        "PYTHONPATH": f"{toolkit}/python/site-packages:/home/me/verl:.",
        "HCCL_IF_IP": "10.0.0.1",
        "RANK_TABLE_FILE": "/etc/rank_table.json",
        "TASK_QUEUE_ENABLE": "2",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "HCCLX": "no",
    }


def test_only_folders_of_cann_and_its_variables_are_taken_over(tmp_path: Path) -> None:
    found = cann_variables(set_env(tmp_path))
    toolkit = tmp_path / "ascend-toolkit" / "latest"
    assert found == {
        "ATB_HOME_PATH": str(tmp_path / "nnal" / "atb" / "latest"),
        "LD_LIBRARY_PATH": f"{toolkit}/lib64{os.pathsep}{tmp_path}/nnal/atb/latest/lib",
        "PYTHONPATH": f"{toolkit}/python/site-packages",
        "HCCL_IF_IP": "10.0.0.1",
        "RANK_TABLE_FILE": "/etc/rank_table.json",
        "TASK_QUEUE_ENABLE": "2",
    }


def test_only_a_cell_on_an_npu_gets_them_after_its_own(tmp_path: Path, monkeypatch) -> None:
    for name, value in set_env(tmp_path).items():
        monkeypatch.setenv(name, value)
    for kind in ("npu", "cpu"):
        location = EnvironmentLocation(
            requested_device=CellDevice(kind=kind), python="/cell/bin/python", prefix="/cell"
        )
        _argv, variables = cell_command(location, Path("/bundle"), "a.module")
        assert variables["PYTHONPATH"].split(os.pathsep)[0] == "/bundle"
        assert ("python/site-packages" in variables["PYTHONPATH"]) is (kind == "npu")
        assert ("LD_LIBRARY_PATH" in variables) is (kind == "npu")
