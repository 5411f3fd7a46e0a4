import os
from pathlib import Path

import pytest

from harness.devices.doctor import Health, examine
from harness.devices.host import HostView, look
from harness.devices.soc import driver_misfit, soc_family


@pytest.fixture
def machine(tmp_path: Path):
    """A host with a fake npu-smi and device nodes (plain files), for the discovery path only."""

    def make(table: str, nodes: list[str], code: int = 0) -> HostView:
        dev, tools = tmp_path / "dev", tmp_path / "bin"
        dev.mkdir()
        tools.mkdir()
        for node in nodes:
            (dev / node).touch()
        (tools / "table").write_text(table)
        program = tools / "npu-smi"
        program.write_text(f'#!/bin/sh\ncat "{tools}/table"\nexit {code}\n')
        program.chmod(0o755)
        return HostView(
            dev=dev,
            ascend=tmp_path / "Ascend",
            environ={"PATH": os.environ["PATH"]},
            which=lambda name: str(program) if name == "npu-smi" else None,
        )

    return make


def table(name: str, chips: int, health: str = "OK") -> str:
    rows = ["| npu-smi 25.5.0    Version: 25.5.0    |"]
    for number in range(chips):
        rows.append(f"| {number}  {name} | {health} | 90 36 0 / 0 |")
        rows.append(f"| 0 | 0000:0{number}:00.0 | 0 0 / 0 3000 / 65536 |")
    return "\n".join(rows)


MANAGERS = ["davinci_manager", "devmm_svm", "hisi_hdc"]


def test_a_host_without_npus_has_no_chips_and_no_error(tmp_path):
    report = look(HostView(dev=tmp_path, environ={}, which=lambda _name: None))
    assert report.npu is None
    assert report.npu_error == ""
    assert report.usable_chips == ()


def test_healthy_cards_with_nodes_are_usable(machine):
    report = look(machine(table("910B3", 2), ["davinci0", "davinci1", *MANAGERS]))
    assert report.usable_chips == (0, 1)
    assert report.soc == "a2"


def test_a_card_without_its_node_is_not_usable(machine):
    report = look(machine(table("910B3", 2), ["davinci0", *MANAGERS]))
    assert report.usable_chips == (0,)


def test_an_unhealthy_card_is_not_usable_and_the_doctor_says_so(machine):
    report = look(machine(table("910B3", 1, health="Critical"), ["davinci0", *MANAGERS]))
    assert report.usable_chips == ()
    finding = next(f for f in examine(report, zig=True, free_bytes=1, needed_bytes=1) if f.topic == "NPU")
    assert finding.health is Health.LIMITED
    assert "unhealthy: 0 (Critical)" in finding.fix


def test_missing_manager_nodes_make_every_card_unusable(machine):
    report = look(machine(table("910B3", 1), ["davinci0"]))
    assert report.usable_chips == ()
    assert report.missing_nodes == tuple(MANAGERS)


def test_a_failing_npu_smi_is_told_not_raised(machine):
    report = look(machine("dcmi module initialize failed. ret is -8005", ["davinci0"], code=1))
    assert report.npu is None
    assert "failed with code 1: dcmi module" in report.npu_error


def test_without_a_compiler_the_default_profile_is_broken(tmp_path):
    report = look(HostView(dev=tmp_path, environ={}, which=lambda _name: None))
    found = examine(report, zig=False, free_bytes=1, needed_bytes=2)
    assert {finding.topic for finding in found if finding.health is Health.BROKEN} == {
        "simulated device",
        "disk",
    }
    assert all(finding.fix for finding in found if finding.health is Health.BROKEN)


@pytest.mark.parametrize(("code", "health"), [(0, Health.OK), (1, Health.LIMITED)])
def test_a_container_engine_counts_only_when_it_answers(tmp_path, monkeypatch, code, health):
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\nexit {code}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    report = look(HostView(dev=tmp_path, environ={}, which=lambda name: name if name == "docker" else None))
    found = examine(report, zig=True, free_bytes=2, needed_bytes=1)
    finding = next(finding for finding in found if finding.topic == "containers")
    assert finding.health is health
    assert "docker" in finding.what
    assert bool(finding.fix) == (health is Health.LIMITED)


@pytest.mark.parametrize(
    ("name", "chips", "family"),
    [
        ("910B4-1", 1, "a2"),
        ("Ascend910B3", 1, "a2"),
        ("Ascend910", 2, "a3"),
        ("Ascend910_9391", 2, "a3"),
        ("910A", 1, ""),
    ],
)
def test_soc_families(name, chips, family):
    assert soc_family(name, chips_per_card=chips) == family


def test_an_old_driver_does_not_fit_a_new_cann_and_the_reason_has_its_source():
    assert driver_misfit("8.5.0", "25.5.0") == ""
    assert "HDK 25.5.0" in driver_misfit("8.5.1", "24.1.0.3")
    assert driver_misfit("8.10.0", "24.1") != ""
    assert driver_misfit("unknown", "24.1") == ""
