"""Stand-ins for NPU hosts: what npu-matrix finds on them, and that nothing outside of them changes."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cell_program.cann_version import installed_version, version_of_library
from harness.devices.host.host_inspection import HostView, inspect_host
from harness.devices.host.npu_smi import parse_npu_smi
from harness.devices.host.soc import driver_misfit
from harness.devices.sim.runtime_build.runtime_library import MANIFEST
from harness.devices.sim.runtime_build.stand_in_cann import install_runtime, toolkit_home
from harness.devices.stand_in import enter_host
from harness.devices.stand_in.enter_host import unshare_command
from harness.devices.stand_in.host_shapes import SHAPES, npu_smi_table
from harness.devices.stand_in.host_tree import StandIn, write_host
from harness.devices.stand_in.stands_for import REPLACED
from harness.errors import InfrastructureError, InputError


@pytest.mark.parametrize(("soc", "devices"), [("a2", 8), ("a3", 16), ("310p", 4)])
def test_the_table_of_each_host_names_all_its_devices(soc: str, devices: int) -> None:
    report = parse_npu_smi(npu_smi_table(SHAPES[soc], "25.5.0"))
    assert [chip.index for chip in report.chips] == list(range(devices))
    assert report.version == "25.5.0"
    assert all(chip.healthy for chip in report.chips)
    assert not report.silent
    assert not report.processes


@pytest.mark.parametrize(
    ("cann", "home"),
    [
        ("8.2.RC2", "ascend-toolkit/8.2.RC2"),
        ("8.5.0.alpha002", "ascend-toolkit/8.5.0.alpha002"),
        ("8.5.0", "cann-8.5.0"),
        ("9.0.0-beta.1", "cann-9.0.0-beta.1"),
    ],
)
def test_cann_lies_where_its_images_have_it(cann: str, home: str, tmp_path: Path) -> None:
    assert toolkit_home(cann) == Path(home)
    write_host(tmp_path, StandIn(shape=SHAPES["a2"], cann=cann))
    assert installed_version(tmp_path / "ascend" / home) == cann
    assert version_of_library(tmp_path / "ascend/ascend-toolkit/latest/lib64/libascendcl.so") == cann


@pytest.mark.parametrize("text", ["", "8", "../../etc", "8.5.0/x", "newest"])
def test_what_is_no_version_of_cann_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        toolkit_home(text)


def test_the_driver_is_one_that_is_published_with_the_cann() -> None:
    for cann in ("8.2.RC2", "8.3.RC1", "8.5.0", "9.1.0"):
        assert not driver_misfit(cann, StandIn(shape=SHAPES["a2"], cann=cann).driver_version)


def test_the_inventory_finds_cards_driver_and_cann(tmp_path: Path) -> None:
    write_host(tmp_path, StandIn(shape=SHAPES["a3"], cann="8.3.RC1"))
    for name in json.loads((tmp_path / "nodes.json").read_text()):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    table = tmp_path / "ascend/driver/lib64/stand-in/table.txt"
    smi = tmp_path / "npu-smi"
    smi.write_text(f"#!/bin/sh\ncat {table}\n")
    smi.chmod(0o755)
    host = inspect_host(
        HostView(
            dev=tmp_path / "dev",
            ascend=tmp_path / "ascend",
            root=tmp_path,
            environ={},
            which=lambda name: str(smi) if name == "npu-smi" else None,
        )
    )
    assert (len(host.usable_chips), host.soc, host.cann, host.driver) == (16, "a3", "8.3.RC1", "25.3.0")


def test_the_runtime_is_installed_only_in_a_stand_in(tmp_path: Path) -> None:
    real = tmp_path / "cann-8.5.0"
    (real / "lib64").mkdir(parents=True)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    (runtime / MANIFEST).write_text('{"torch_npu": "2.7.1"}')
    (runtime / "libascendcl.so").write_text("simulated")
    (runtime / "libhccl.so").symlink_to("libascendcl.so")
    for environ in ({}, {"ASCEND_TOOLKIT_HOME": str(real)}):
        with pytest.raises(InfrastructureError, match="not a stand-in"):
            install_runtime(runtime, environ)
    assert not list((real / "lib64").iterdir())
    write_host(tmp_path, StandIn(shape=SHAPES["a2"], cann="8.5.0"))
    home = tmp_path / "ascend/cann-8.5.0"
    install_runtime(runtime, {"ASCEND_TOOLKIT_HOME": str(home)})
    assert (home / "lib64/libhccl.so").resolve() == home / "lib64/libascendcl.so"
    install_runtime(runtime, {"ASCEND_TOOLKIT_HOME": str(home)})
    (runtime / MANIFEST).write_text('{"torch_npu": "2.9.0"}')
    with pytest.raises(InfrastructureError, match="another torch_npu"):
        install_runtime(runtime, {"ASCEND_TOOLKIT_HOME": str(home)})


def test_the_host_exists_in_its_namespace_only(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("this machine makes no mount namespaces")
    files = write_host(tmp_path, StandIn(shape=SHAPES["a2"], cann="8.5.0"))
    script = (
        f"source {files[0]}; test -c /dev/davinci7; test -c /dev/null; test ! -e /dev/davinci8; npu-smi info; "
        "cat /etc/hccn.conf /etc/passwd; echo $ASCEND_TOOLKIT_HOME; touch /usr/local/mine /etc/mine"
    )
    command = unshare_command(tmp_path, ["bash", "-ec", script])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "910B3" in done.stdout
    assert "address_7=192.168.7.1" in done.stdout
    assert "/usr/local/Ascend/cann-8.5.0" in done.stdout
    outside = ("/usr/local/mine", "/etc/mine", "/dev/davinci7", "/usr/local/Ascend/cann-8.5.0")
    assert not [path for path in outside if Path(path).exists()]


@pytest.mark.parametrize("failing", range(1, 8))
def test_a_mount_that_fails_deletes_nothing(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of the machine are mounted in the working folder then; a recursive removal would empty them."""
    write_host(tmp_path / "host", StandIn(shape=SHAPES["a2"], cann="8.5.0"))
    machine = []

    def mount(_source: str, target: Path, **_options: object) -> None:
        if len(machine) == failing:
            raise OSError(1, "Operation not permitted", "mount")
        machine.append(target / f"of-the-machine-{len(machine)}")
        if target.is_relative_to(tmp_path):
            machine[-1].touch()

    monkeypatch.setattr(enter_host, "_mount", mount)
    monkeypatch.setattr(enter_host.tempfile, "tempdir", str(tmp_path))
    with contextlib.suppress(OSError):
        enter_host.mount_host(tmp_path / "host")
    shown = [path for path in machine if path.is_relative_to(tmp_path)]
    assert all(path.exists() for path in shown)
    assert failing < 2 or shown


def test_a_machine_that_cannot_mount_says_so(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "harness.devices.stand_in.enter_host", str(tmp_path / "none"), "true"]
    done = subprocess.run(
        ["unshare", "-m", *program] if shutil.which("unshare") else program,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert "cannot be set up" in done.stderr
    assert "user namespaces" in done.stderr


def test_everything_replaced_is_named_in_both_languages() -> None:
    assert all(
        len(text) == 2 and all(text) for one in REPLACED for text in (one.part, one.stand_in, one.untried)
    )
