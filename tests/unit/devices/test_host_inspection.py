import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import npu_smi_layouts as layouts
import pytest

from harness.devices.cards.device_nodes import card_nodes, visible_devices
from harness.devices.host.card_network import CardNetwork, inspect_card_network
from harness.devices.host.host_findings import DiskSpace, Health, HostFinding, examine_host
from harness.devices.host.host_inspection import (
    HostReport,
    HostView,
    inspect_host,
    lost_cards,
)
from harness.devices.host.soc import driver_misfit, soc_family

ROOM = DiskSpace(free=1, needed=1, free_on=lambda _folder: 1, images=1)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeouts, because a loaded machine may start the programs of these tests slowly."""
    for limit in (
        "container_service.INFO_TIMEOUT_S",
        "host_inspection.NPU_SMI_TIMEOUT_S",
        "card_network.TOOL_TIMEOUT_S",
    ):
        monkeypatch.setattr(f"harness.devices.host.{limit}", 300.0)


@pytest.fixture
def machine(tmp_path: Path):
    """A host with a fake npu-smi and plain files as device nodes."""

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
            root=tmp_path,
            environ={"PATH": os.environ["PATH"]},
            which=lambda name: str(program) if name == "npu-smi" else None,
        )

    return make


def finding_of(report: HostReport, topic: str, network: CardNetwork | None = None) -> HostFinding:
    findings = examine_host(report, zig=True, disk=ROOM, network=network)
    return next(finding for finding in findings if finding.topic == topic)


def table(name: str, chips: int, health: str = "OK") -> str:
    rows = ["| npu-smi 25.5.0    Version: 25.5.0    |"]
    for number in range(chips):
        rows.append(f"| {number}  {name} | {health} | 90 36 0 / 0 |")
        rows.append(f"| 0 | 0000:0{number}:00.0 | 0 0 / 0 3000 / 65536 |")
    return "\n".join(rows)


MANAGERS = ["davinci_manager", "devmm_svm", "hisi_hdc"]


def test_a_host_without_npus_has_no_chips_and_no_error(tmp_path):
    report = inspect_host(HostView(dev=tmp_path, environ={}, which=lambda _name: None))
    assert report.npu is None
    assert report.npu_error == ""
    assert report.usable_chips == ()


def test_healthy_cards_with_nodes_are_usable(machine):
    report = inspect_host(machine(table("910B3", 2), ["davinci0", "davinci1", *MANAGERS]))
    assert report.usable_chips == (0, 1)
    assert report.soc == "a2"


def test_a_card_without_its_node_is_not_usable(machine):
    report = inspect_host(machine(table("910B3", 2), ["davinci0", *MANAGERS]))
    assert report.usable_chips == (0,)


def test_an_unhealthy_card_is_not_usable_and_the_doctor_says_so(machine):
    report = inspect_host(machine(table("910B3", 1, health="Critical"), ["davinci0", *MANAGERS]))
    assert report.usable_chips == ()
    finding = finding_of(report, "NPU")
    assert finding.health is Health.LIMITED
    assert "unhealthy: 0 (Critical)" in finding.what
    assert "npu-smi info -t health" in finding.fix


def test_missing_manager_nodes_make_every_card_unusable(machine):
    report = inspect_host(machine(table("910B3", 1), ["davinci0"]))
    assert report.usable_chips == ()
    assert report.missing_nodes == tuple(MANAGERS)


def test_a_failing_npu_smi_is_reported_not_raised(machine):
    report = inspect_host(machine("dcmi module initialize failed. ret is -8005", ["davinci0"], code=1))
    assert report.npu is None
    assert "the driver is not running" in report.npu_error
    assert "exit code 1" in report.npu_error
    finding = finding_of(report, "NPU")
    assert finding.what == report.npu_error
    assert finding.fix == report.npu_fix
    assert "manager nodes" in finding.fix


def test_without_a_compiler_the_default_profile_is_broken(tmp_path):
    report = inspect_host(HostView(dev=tmp_path, environ={}, which=lambda _name: None))
    findings = examine_host(report, zig=False, disk=replace(ROOM, needed=2))
    assert {finding.topic for finding in findings if finding.health is Health.BROKEN} == {
        "simulated device",
        "disk",
    }
    assert all(finding.fix for finding in findings if finding.health is Health.BROKEN)


@pytest.mark.parametrize(("code", "health"), [(0, Health.OK), (1, Health.LIMITED)])
def test_a_container_engine_counts_only_when_it_answers(tmp_path, monkeypatch, code, health):
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho 'permission denied: docker.sock' >&2\nexit {code}\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    report = inspect_host(
        HostView(dev=tmp_path, environ={}, which=lambda name: name if name == "docker" else None)
    )
    finding = finding_of(report, "containers")
    assert finding.health is health
    assert "docker" in finding.what
    assert ("permission denied" in finding.what) == (health is Health.LIMITED)
    assert bool(finding.fix) == (health is Health.LIMITED)


@pytest.mark.parametrize(
    ("name", "chips", "family"),
    [
        ("910B4-1", 1, "a2"),
        ("Ascend910B3", 1, "a2"),
        ("910B2C", 1, "a2"),
        ("Ascend310P3vir01", 1, "310p"),
        ("910C", 1, ""),
        ("Ascend910", 2, "a3"),
        ("Ascend910_9391", 2, "a3"),
        ("910A", 1, "910"),
    ],
)
def test_soc_families(name, chips, family):
    assert soc_family(name, chips_per_card=chips) == family


def test_an_old_driver_does_not_fit_a_new_cann_and_the_reason_has_its_source():
    assert driver_misfit("8.5.0", "25.5.0") == ""
    assert "HDK 25.5.0" in driver_misfit("8.5.1", "24.1.0.3")
    assert driver_misfit("8.10.0", "24.1") != ""
    assert driver_misfit("unknown", "24.1") == ""


def machine_with(machine, text: str, cards: Sequence[int]) -> HostView:
    return machine(text, [*(f"davinci{card}" for card in cards), *MANAGERS])


def test_a_card_alone_in_a_container_is_usable(machine):
    assert inspect_host(machine_with(machine, layouts.A2_ONE_OF_EIGHT, [5])).usable_chips == (5,)


def test_cards_with_slot_numbers_get_device_numbers_by_their_order(machine):
    slots = layouts.A2_UNHEALTHY.replace("| 0     910B3", "| 9     910B3").replace(
        "| 1     910B3", "| 11    910B3"
    )
    pair = "\n".join(slots.splitlines()[:12])
    report = inspect_host(machine_with(machine, pair.replace("Warning", "OK     "), [0, 1]))
    assert report.usable_chips == (0, 1)


def test_cards_that_others_use_are_not_usable_and_the_doctor_names_them(machine):
    report = inspect_host(machine_with(machine, layouts.A2_FOREIGN, [0, 1]))
    assert report.usable_chips == (1,)
    assert "in use: 0/0 by pid 1333928, 0/0 by pid 1333930" in finding_of(report, "NPU").what


@pytest.mark.parametrize(("second", "usable"), [("OK", (0,)), ("Alarm", ())])
def test_a_device_that_a_damaged_table_names_twice_counts_once_and_only_if_fit(machine, second, usable):
    once, again = table("910B3", 1), table("910B3", 1, second)
    text = f"{once}\n{again.partition(chr(10))[2]}"
    assert inspect_host(machine_with(machine, text, [0])).usable_chips == usable


def test_a_table_without_cards_is_reported(machine):
    text = "| npu-smi 25.5.0    Version: 25.5.0    |\n"
    finding = finding_of(inspect_host(machine(text, [])), "NPU")
    assert "/dev/davinci_manager" in finding.what
    assert "npu-smi lists no card" in finding.what


def test_a_card_without_details_is_reported(machine):
    text = "\n".join(line for line in layouts.A2_EIGHT.splitlines() if "0000:82" not in line)
    report = inspect_host(machine_with(machine, text, range(8)))
    finding = finding_of(report, "NPU")
    assert len(report.usable_chips) == 7
    assert "listed without details: card 3" in finding.what
    assert "dmesg" in finding.fix


def test_a_driver_without_cards_is_named(machine):
    report = inspect_host(machine_with(machine, "| npu-smi 25.5.0   Version: 25.5.0 |", []))
    assert "npu-smi lists no card" in finding_of(report, "NPU").what


def test_every_limit_of_the_cards_has_its_fix(machine):
    report = inspect_host(machine_with(machine, layouts.A2_UNHEALTHY, [0]))
    finding = finding_of(report, "NPU")
    assert finding.health is Health.LIMITED
    assert "no /dev/davinci node: 1, 2, 3, 4" in finding.what
    assert "--device" in finding.fix


def test_the_driver_is_reported_even_if_npu_smi_fails(machine, tmp_path):
    (tmp_path / "Ascend/driver").mkdir(parents=True)
    (tmp_path / "Ascend/driver/version.info").write_text("Version=24.1.0.3\nascendhal_version=7.35.23\n")
    report = inspect_host(machine("dcmi module initialize failed. ret is -8005", ["davinci0"], code=1))
    assert report.driver == "24.1.0.3"
    assert "(driver 24.1.0.3)" in finding_of(report, "NPU").what


@pytest.mark.parametrize(
    ("place", "text", "version"),
    [
        ("cann/latest/aarch64-linux/ascend_toolkit_install.info", "version=8.5.0\n", "8.5.0"),
        ("ascend-toolkit/latest/x86_64-linux/ascend_toolkit_install.info", "version=8.1.RC1\n", "8.1.RC1"),
        ("ascend-toolkit/latest/version.cfg", "toolkit_running_version=[7.6.0.1.220:8.0.0]\n", "8.0.0"),
    ],
)
def test_cann_is_found_where_its_releases_put_it(tmp_path, place, text, version):
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_text(text)
    report = inspect_host(HostView(dev=tmp_path, ascend=tmp_path, environ={}, which=lambda _name: None))
    assert report.cann == version


def test_a_driver_older_than_the_installed_cann_is_a_finding_with_its_fix(machine, tmp_path):
    file = tmp_path / "Ascend/cann/latest/aarch64-linux/ascend_toolkit_install.info"
    file.parent.mkdir(parents=True)
    file.write_text("version=8.5.0\n")
    report = inspect_host(machine_with(machine, layouts.A2_EIGHT, range(8)))
    finding = finding_of(report, "driver")
    assert finding.health is Health.LIMITED
    assert "driver 25.5 or newer, this host has 23.0.3" in finding.what
    assert "update the driver" in finding.fix
    newer = replace(report, driver="25.5.1")
    assert not [finding for finding in examine_host(newer, zig=True, disk=ROOM) if finding.topic == "driver"]


def test_cards_without_cann_are_a_finding_with_its_fix(machine, tmp_path):
    report = inspect_host(machine_with(machine, layouts.A2_EIGHT, range(8)))
    finding = finding_of(report, "CANN")
    assert (finding.health, "only cells in containers" in finding.what) == (Health.LIMITED, True)
    assert "install the CANN of your stack" in finding.fix
    for other in (replace(report, cann="8.5.0"), replace(report, npu=None, npu_error="")):
        assert not [one for one in examine_host(other, zig=True, disk=ROOM) if one.topic == "CANN"]


def test_ascend_docker_runtime_and_missing_driver_files_are_reported(machine, tmp_path):
    settings = tmp_path / "etc/docker/daemon.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"runtimes": {"ascend": {"path": "/x/ascend-docker-runtime"}}}))
    report = inspect_host(machine_with(machine, layouts.A2_EIGHT, range(8)))
    finding = finding_of(report, "cards in containers")
    assert finding.health is Health.LIMITED
    assert "Ascend Docker Runtime is registered" in finding.what
    assert "/usr/local/dcmi" in finding.what
    for path in ("usr/local/Ascend/driver", "usr/local/dcmi", "usr/local/bin"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "usr/local/bin/npu-smi").touch()
    (tmp_path / "etc/ascend_install.info").touch()
    settings.write_text("not json")
    again = finding_of(inspect_host(host_with_all_files(tmp_path)), "cards in containers")
    assert (again.health, again.what) == (
        Health.OK,
        "device nodes and driver files are passed into containers one by one",
    )


def host_with_all_files(tmp_path: Path) -> HostView:
    return HostView(
        dev=tmp_path / "dev",
        root=tmp_path,
        environ={"PATH": os.environ["PATH"]},
        which=lambda name: str(tmp_path / "bin/npu-smi") if name == "npu-smi" else None,
    )


def hccn_tool(folder: Path, body: str) -> HostView:
    """A host with a fake of the driver's tool: `hccn_tool -i N -ip|-link -g`."""
    tool = folder / "driver/tools/hccn_tool"
    tool.parent.mkdir(parents=True)
    tool.write_text(f'#!/bin/sh\ncase "$2$3" in\n{body}\nesac\n')
    tool.chmod(0o755)
    return HostView(dev=folder, ascend=folder, environ={"PATH": os.environ["PATH"]}, which=lambda _name: None)


def test_little_shared_memory_is_reported_with_its_fix(tmp_path):
    report = inspect_host(HostView(dev=tmp_path, environ={}, which=lambda _name: None))
    assert report.shm_bytes is None
    finding = finding_of(replace(report, shm_bytes=64 << 20), "shared memory")
    assert (finding.health, "--shm-size" in finding.fix) == (Health.LIMITED, True)
    roomy = replace(report, shm_bytes=8 << 30)
    assert "shared memory" not in {finding.topic for finding in examine_host(roomy, zig=True, disk=ROOM)}


def test_links_of_the_cards(machine, tmp_path):
    view = hccn_tool(
        tmp_path / "Ascend",
        "0-ip|1-ip|2-ip) echo ipaddr:10.0.0.1; echo netmask:255.255.255.0;;\n"
        "0-link|2-link) echo link status: UP;;\n1-link) echo link status: DOWN;;",
    )
    report = inspect_host(machine_with(machine, layouts.A2_EIGHT, range(8)))
    network = inspect_card_network(view, (0, 1, 2, 3))
    assert network.up == (0, 2)
    finding = finding_of(report, "HCCL network", network)
    assert finding.health is Health.LIMITED
    assert finding.what == "2 of 4 cards can reach other hosts; not: 1 (link is DOWN), 3 (no address)"
    assert "hccn_tool -i CARD -ip -s" in finding.fix
    assert finding_of(report, "HCCL network", inspect_card_network(view, (0, 2))).health is Health.OK


def test_without_the_tool_the_network_is_unknown(tmp_path):
    view = HostView(dev=tmp_path, ascend=tmp_path, environ={}, which=lambda _name: None)
    assert inspect_card_network(view, (0,)).error == "hccn_tool is not installed on this host"


@pytest.mark.parametrize(
    ("text", "nodes", "lost"),
    [
        (layouts.A2_EIGHT, range(8), {}),
        (layouts.A2_EIGHT, [0, 1, 2], {3: "davinci3 no longer exists"}),
        (layouts.A2_UNHEALTHY, range(5), {3: "reports its health as Critical"}),
        (layouts.A2_FOREIGN, range(8), {3: "npu-smi no longer lists it"}),
        ("dcmi module initialize failed. ret is -8005", range(8), {0: "not running", 3: "not running"}),
    ],
)
def test_a_lost_card_is_reported_with_the_reason(machine, text, nodes, lost):
    reasons = lost_cards((0, 3), machine_with(machine, text, nodes))
    assert reasons.keys() == lost.keys()
    assert all(why in reasons[card] for card, why in lost.items())


def test_the_runtime_counts_what_it_can_see(tmp_path):
    for card in (2, 5, 7):
        (tmp_path / f"davinci{card}").touch()
    assert visible_devices((5, 7), tmp_path) == "1,2"
    assert visible_devices((0, 1), tmp_path / "none") == "0,1"


def test_a_container_is_given_its_own_cards_alone_counted_from_0(tmp_path):
    for name in ("davinci0", "davinci3", "davinci6", "davinci_manager", "sda"):
        (tmp_path / name).touch()
    names = lambda cards: tuple(str(tmp_path / f"davinci{card}") for card in cards)  # noqa: E731
    manager = (str(tmp_path / "davinci_manager"),)
    assert card_nodes("1", tmp_path) == (names([3]) + manager, "0")
    assert card_nodes("2,1", tmp_path) == (names([6, 3]) + manager, "1,0")
    assert card_nodes("", tmp_path) == (names([0, 3, 6]) + manager, "0,1,2")
