"""Hosts as public reports describe them: what `doctor` and `plan` read on each of them.

The values are invented; a comment names the public source of a layout or a fact.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import npu_smi_layouts as layouts
import pytest

from harness.cell_program.cann_version import cann_folders, installed_version
from harness.devices.cards import device_nodes, driver_files
from harness.devices.cards.device_nodes import card_nodes, closed_node
from harness.devices.host.host_findings import (
    DiskSpace,
    Health,
    HostFinding,
    examine_host,
    why_no_card,
)
from harness.devices.host.host_inspection import HostReport, HostView, inspect_host, lost_cards
from harness.devices.host.soc import build_family, pci_family, soc_family

MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
#: What npu-smi prints in a container of Ascend Docker Runtime although the card works: `npu_main` of npu-smi.
NO_BOARD = "npu get board type failed. ret is -9005"

#: The chips that NpuVariables.cpp of torch_npu knows (commit of 2026-11), with the numbers of its SocVersion.
TORCH_NPU_CHIPS = {
    "910": ("910PremiumA", "910ProA", "910A", "910ProB", "910B"),
    "310p": ("310P1", "310P2", "310P3", "310P4", "310P5", "310P7"),
    "a2": ("910B1", "910B2", "910B2C", "910B3", "910B4", "910B4-1"),
    "310b": ("310B1", "310B2", "310B3", "310B4"),
    "a3": ("910_9391", "910_9392", "910_9381", "910_9382", "910_9372", "910_9362", "910_9363"),
    "a5": ("950", "950PR_9599", "950DT_95A1"),
}

Host = Callable[..., HostView]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Makes a host in a folder: its device nodes, npu-smi, driver and PCI devices."""

    def make(
        output: str,
        cards: Sequence[int],
        *,
        managers: Sequence[str] = MANAGERS,
        smi: str = "usr/local/sbin",
        code: int = 0,
        pci: Sequence[str] = (),
        home: str = "",
    ) -> HostView:
        for name in (*(f"davinci{card}" for card in cards), *managers):
            write(tmp_path / "dev" / name)
        if smi:
            program = write(tmp_path / smi / "npu-smi", f"#!/bin/sh\ncat '{tmp_path}/table'\nexit {code}\n")
            program.chmod(0o755)
        write(tmp_path / "table", output)
        for number, device in enumerate(pci):
            write(tmp_path / f"sys/bus/pci/devices/0000:{number:02x}:00.0/vendor", "0x19e5\n")
            write(tmp_path / f"sys/bus/pci/devices/0000:{number:02x}:00.0/device", f"{device}\n")
        return HostView(
            dev=tmp_path / "dev",
            ascend=tmp_path / "usr/local/Ascend",
            root=tmp_path,
            environ={"PATH": os.environ["PATH"], **({"HOME": home} if home else {})},
            which=lambda _name: None,
        )

    return make


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def table(*cards: tuple[str, str], version: str = "24.1.0") -> str:
    """The layout of A2: (name, health) of each card."""
    rows = [f"| npu-smi {version}    Version: {version}    |"]
    for number, (name, health) in enumerate(cards):
        rows.append(f"| {number}     {name} | {health} | 78.0  38  0 / 0 |")
        rows.append(f"| 0 | 0000:0{number}:00.0 | 0  2387 / 13553   18 / 32768 |")
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("name", "family"), [(name, family) for family, names in TORCH_NPU_CHIPS.items() for name in names]
)
def test_chips_are_of_the_family_that_torch_npu_gives_them(name: str, family: str) -> None:
    assert soc_family(name) == family
    assert soc_family(f"Ascend{name}") == family


def test_910b_is_a2_to_builds_and_a_first_generation_chip_to_npu_smi() -> None:
    assert soc_family("910B") == "910"
    assert [build_family(word) for word in ("910b", "ascend910b1", "A2", "310p", "910_9391")] == [
        "a2",
        "a2",
        "a2",
        "310p",
        "a3",
    ]


def test_a_host_of_the_first_generation_is_no_a2_and_no_unknown_chip(host: Host) -> None:
    """910ProB with driver 24.1.0, in an issue of MindIE; 910B on cards that the vendor calls 910A."""
    report = inspect_host(host(table(("910ProB", "OK"), ("910ProB", "OK")), [0, 1]))
    assert (report.soc, report.usable_chips) == ("910", (0, 1))
    assert inspect_host(host(table(("910B", "OK"), ("910B", "OK")), [0, 1])).soc == "910"


def test_one_die_of_a3_in_a_container_is_a3(host: Host) -> None:
    one = "\n".join(line for line in layouts.A3.splitlines() if "| 1     5 " not in line)
    assert inspect_host(host(one, [4])).soc == "a3"


def test_two_dies_that_are_the_same_device_are_one_card(host: Host) -> None:
    """Soft partitions of A3: npu-smi lists a die twice (documentation of MindCluster, vCANN-RT)."""
    both = layouts.A3.partition("+---------------------------+---------------+--------")
    text = "".join(both).replace("| 0     4  ", "| 0     0  ").replace("| 1     5  ", "| 1     0  ")
    text = text.replace("| 2       0                 | 824166 ", "| 9       0                 | 824166 ")
    assert inspect_host(host(text, [0])).usable_chips == (0,)


def test_a_310p_card_with_another_number_in_its_container_is_usable(host: Host) -> None:
    """NPU 32896, device 0, driver 25.5.2 (tests of nputop); the container has davinci3."""
    text = table(("310P3", "OK"), version="25.5.2").replace("| 0     310P3", "| 32896   310P3")
    report = inspect_host(host(text.replace("| 0 | 0000", "| 0       0 | 0000"), [3]))
    assert (report.soc, report.usable_chips) == ("310p", (3,))


def test_chips_of_another_family_are_not_given_to_cells(host: Host) -> None:
    report = inspect_host(host(table(("910B4", "OK"), ("310P3", "OK"), ("910B4", "OK")), [0, 1, 2]))
    assert (report.soc, report.usable_chips) == ("a2", (0, 2))
    assert [chip.index for chip in report.other_chips] == [1]


def test_an_a5_host_has_no_node_for_shared_memory(host: Host) -> None:
    report = inspect_host(host(layouts.A5.replace("Alarm", "OK   "), [0, 1], managers=MANAGERS[::2]))
    assert (report.soc, report.missing_nodes) == ("a5", ())
    assert report.usable_chips == (1,)
    a2 = inspect_host(host(table(("910B3", "OK")), [0], managers=MANAGERS[::2]))
    # The host above is still there, with the same nodes.
    assert a2.missing_nodes == ("devmm_svm",)
    assert "/dev/devmm_svm is missing" in why_no_card(a2)


@pytest.mark.parametrize("smi", ["usr/local/bin", ""])
def test_cards_whose_health_npu_smi_cannot_tell_are_used_with_their_family_from_the_bus(
    host: Host, smi: str
) -> None:
    view = host(NO_BOARD, [14], smi=smi, code=1, pci=("0xd803", "0xd803", "0xa222"))
    report = inspect_host(view)
    assert (report.npu, report.unread, report.soc, report.usable_chips) == (None, True, "a3", (14,))
    assert "health" in report.npu_error or "not on PATH" in report.npu_error
    assert why_no_card(report) == ""
    assert lost_cards([14], view) == {}
    assert lost_cards([15], view) == {15: f"{view.dev}/davinci15 no longer exists"}


@pytest.mark.parametrize(
    "output",
    [
        "dcmi model initialized failed, because the device is used. ret is -8020\n" + NO_BOARD,
        "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi module initialize failed. ret is -8005",
        "There is no NPU card on this server.",
    ],
)
def test_a_driver_that_fails_leaves_no_usable_card_and_says_which_failure(host: Host, output: str) -> None:
    report = inspect_host(host(output, [0], code=1, pci=("0xd802",)))
    assert report.usable_chips == ()
    assert why_no_card(report) == report.npu_error != ""


def test_colours_do_not_hide_that_only_npu_smi_fails(host: Host) -> None:
    coloured = NO_BOARD.replace("board", "\x1b[31mboard\x1b[0m")
    assert inspect_host(host(coloured, [0], code=1)).usable_chips == (0,)


def test_two_families_on_the_bus_name_none(host: Host) -> None:
    view = host(NO_BOARD, [0], pci=("0xd802", "0xd500"))
    assert pci_family(view.root / "sys/bus/pci/devices") == ""
    assert pci_family(view.root / "nowhere") == ""


def test_npu_smi_outside_of_path_is_found_and_passed_on(host: Host, monkeypatch) -> None:
    view = host(table(("910B3", "OK")), [0])
    assert inspect_host(view).usable_chips == (0,)
    write(view.root / "usr/local/dcmi/x")
    write(view.root / "usr/local/Ascend/driver/version.info", "Version=25.5.2\n")
    write(view.root / "etc/ascend_install.info", "UserName=HwHiAiUser\n")
    assert driver_files.inspect_card_passthrough(view.root).missing == ()


def test_a_driver_in_another_folder_is_found_by_its_record(host: Host) -> None:
    """The format of /etc/ascend_install.info: a guide to updates of driver and firmware."""
    view = host("dcmi module initialize failed. ret is -8005", [0], code=1)
    record = (
        "UserName=HwHiAiUser\nDriver_Install_Path_Param=/opt/huawei\nFirmware_Install_Path_Param=/opt/f\n"
    )
    write(view.root / "etc/ascend_install.info", record)
    write(view.root / "usr/local/Ascend/driver/version.info", "Version=23.0.0\n")
    assert inspect_host(view).driver == "23.0.0"
    write(view.root / "opt/huawei/driver/version.info", "Version=25.5.2\nascendhal_version=7.35.23\n")
    assert inspect_host(view).driver == "25.5.2"
    missing = driver_files.inspect_card_passthrough(view.root).missing
    assert "/opt/huawei/driver" not in missing
    assert "/usr/local/dcmi" in missing


@pytest.mark.parametrize(
    ("files", "version"),
    [
        (
            {"Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info": "version=8.3.RC1"},
            "8.3.RC1",
        ),
        ({"Ascend/cann/share/info/runtime/version.info": "Version=9.1.0\n"}, "9.1.0"),
        ({"Ascend/nnae/latest/ascend_nnae_install.info": "package_name=x\nversion=8.0.RC3\n"}, "8.0.RC3"),
        ({"Ascend/cann-9.0.0/x86_64-linux/ascend_toolkit_install.info": "version=9.0.0"}, "9.0.0"),
        (
            {
                "Ascend/ascend_cann_install.info": "Install_Path={home}\nToolkit_InstallPath={home}/opt/8.5.0\n",
                "opt/8.5.0/aarch64-linux/ascend_toolkit_install.info": "version=8.5.0\n",
            },
            "8.5.0",
        ),
        ({"Ascend/driver/version.info": "Version=25.5.2"}, ""),
    ],
)
def test_cann_is_found_in_each_layout_of_a_user(files: dict[str, str], version: str, tmp_path: Path) -> None:
    for name, text in files.items():
        write(tmp_path / name, text.format(home=tmp_path))
    found = map(installed_version, cann_folders({"HOME": str(tmp_path)}, tmp_path / "none"))
    assert next(filter(None, found), "") == version
    assert list(cann_folders({}, tmp_path / "none")) == []
    # set_env.sh sets several variables to one folder, which also is a usual one.
    named = dict.fromkeys(("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"), str(tmp_path / "none/cann"))
    (tmp_path / "none/cann").mkdir(parents=True)
    assert cann_folders(named, tmp_path / "none") == [tmp_path / "none/cann"]


def test_the_newest_of_several_toolkits_is_found_without_links(tmp_path: Path) -> None:
    names = ("cann-9.1.0", "cann-10.0.0.RC1", "cann-9.0.0.rc2", "cann-10.0.0", "cann-10.0.0.alpha001")
    for name in names:
        write(tmp_path / name / "aarch64-linux/ascend_toolkit_install.info", f"version={name[5:]}\n")
    assert [folder.name for folder in cann_folders({}, tmp_path)] == [
        "cann-10.0.0",
        "cann-10.0.0.RC1",
        "cann-10.0.0.alpha001",
        "cann-9.1.0",
        "cann-9.0.0.rc2",
    ]


def toolkit(view: HostView, folder: str, version: str) -> str:
    place = view.ascend / folder
    write(place / "aarch64-linux/ascend_toolkit_install.info", f"version={version}\n")
    return str(place)


def atb(view: HostView, version: str) -> str:
    """The format of version.info: issues of MindIE and of Ascend/pytorch."""
    write(
        view.ascend / "nnal/atb/latest/version.info",
        f"    Ascend-cann-atb : {version}\n    Ascend-cann-atb Version : {version}.B030\n",
    )
    home = view.ascend / "nnal/atb/latest/atb/cxx_abi_1"
    home.mkdir(parents=True)
    return str(home)


def test_variables_that_select_two_toolkits_are_told(host: Host) -> None:
    view = host(table(("910B3", "OK")), [0])
    environ = {
        "ASCEND_TOOLKIT_HOME": toolkit(view, "ascend-toolkit/8.2.RC1", "8.2.RC1"),
        "ASCEND_HOME_PATH": toolkit(view, "cann-8.5.0", "8.5.0"),
    }
    (found,) = cann_findings(replace(view, environ={**view.environ, **environ}))
    assert "ASCEND_TOOLKIT_HOME selects CANN 8.2.RC1, ASCEND_HOME_PATH selects CANN 8.5.0" in found.what
    assert "set_env.sh" in found.fix
    environ["ASCEND_HOME_PATH"] = environ["ASCEND_TOOLKIT_HOME"]
    assert cann_findings(replace(view, environ={**view.environ, **environ})) == []


def test_a_variable_that_selects_no_folder_and_nnal_of_another_release_are_told(host: Host) -> None:
    view = host(table(("910B3", "OK")), [0])
    environ = {"ASCEND_HOME_PATH": "/gone/cann", "ATB_HOME_PATH": atb(view, "8.2.RC2")}
    toolkit(view, "cann-8.5.0", "8.5.0")
    (found,) = cann_findings(replace(view, environ={**view.environ, **environ}))
    assert "ASCEND_HOME_PATH is /gone/cann, which is no folder here" in found.what
    assert "NNAL is of 8.2.RC2, CANN of 8.5.0" in found.what


def test_nnal_of_the_same_release_is_no_problem(host: Host) -> None:
    view = host(table(("910B3", "OK")), [0])
    toolkit(view, "cann-8.5.1", "8.5.1")
    atb(view, "8.5.0")
    assert cann_findings(view) == []


@pytest.mark.parametrize("health", ["NA", "N/A", "UNKNOWN", "Offline"])
def test_a_card_whose_health_is_not_known_is_listed_and_not_used(host: Host, health: str) -> None:
    report = inspect_host(host(table(("910B3", "OK"), ("910B3", health)), [0, 1]))
    assert report.usable_chips == (0,)
    assert f"unhealthy: 1 ({health})" in examine_npu(report).what


def test_a_user_outside_of_the_group_of_the_nodes_is_told(host: Host, monkeypatch) -> None:
    """-8005 for a user, and a table for root: driver 25.5.2."""
    view = host("dcmi module initialize failed. ret is -8005", [0], code=1)
    monkeypatch.setattr(device_nodes.os, "access", lambda *_: False)
    monkeypatch.setattr(device_nodes.os, "geteuid", lambda: 1234)
    monkeypatch.setattr(device_nodes.os, "getegid", lambda: 1234)
    monkeypatch.setattr(device_nodes.os, "getgroups", list)
    report = inspect_host(view)
    assert "this user may not open" in why_no_card(report)
    assert "-8005" in why_no_card(report)
    (view.root / "table").write_text(table(("910B3", "OK")))
    assert inspect_host(view).usable_chips == ()
    assert closed_node(view.root / "nowhere") is None


def eight(host: Host, **environ: str) -> HostReport:
    view = host(table(*(("910B3", "OK"),) * 8), range(8))
    return inspect_host(replace(view, environ={**view.environ, **environ}))


@pytest.mark.parametrize(
    ("environ", "cards"),
    [
        ({"ASCEND_RT_VISIBLE_DEVICES": "4,5"}, (4, 5)),
        ({"ASCEND_RT_VISIBLE_DEVICES": " 5 , 4 "}, (4, 5)),
        ({"ASCEND_RT_VISIBLE_DEVICES": "2,9,3"}, (2,)),
        ({"ASCEND_RT_VISIBLE_DEVICES": ""}, tuple(range(8))),
        ({"ASCEND_VISIBLE_DEVICES": "0-2,6"}, (0, 1, 2, 6)),
        ({"ASCEND_VISIBLE_DEVICES": "Ascend910-3,Ascend910-1"}, (1, 3)),
        ({"ASCEND_VISIBLE_DEVICES": "npu-7"}, (7,)),
        ({"ASCEND_VISIBLE_DEVICES": "void"}, tuple(range(8))),
        ({"ASCEND_VISIBLE_DEVICES": "12,13"}, tuple(range(8))),
        ({"ASCEND_VISIBLE_DEVICES": "0-3", "ASCEND_RT_VISIBLE_DEVICES": "2,3"}, (2, 3)),
    ],
)
def test_a_job_uses_only_the_cards_that_its_scheduler_assigned(
    host: Host, environ: dict[str, str], cards: tuple[int, ...]
) -> None:
    """In a Slurm job or a privileged pod, the other cards are visible and belong to somebody else."""
    assert eight(host, **environ).usable_chips == cards


def test_what_is_wrong_with_cards_of_another_job_is_no_problem_of_this_one(host: Host) -> None:
    text = table(("910B3", "Critical"), ("910B3", "OK"), ("910B3", "OK"))
    text += "\n| NPU  Chip | Process id | Process name | memory |\n| 2   0 | 77 | python3 | 1200 |"
    view = host(text, [0, 1])
    view = replace(view, environ={**view.environ, "ASCEND_RT_VISIBLE_DEVICES": "1"})
    finding = examine_npu(inspect_host(view))
    assert (finding.health, finding.fix) == (Health.OK, "")
    assert "1 of 1 chips usable" in finding.what
    assert "ASCEND_RT_VISIBLE_DEVICES=1 assigns" in finding.what


def test_a_job_whose_variable_names_no_card_is_told(host: Host) -> None:
    assert "ASCEND_RT_VISIBLE_DEVICES=8 names no card" in why_no_card(
        eight(host, ASCEND_RT_VISIBLE_DEVICES="8")
    )


def test_the_family_is_that_of_the_assigned_cards(host: Host) -> None:
    view = host(table(("910B4", "OK"), ("910B4", "OK"), ("310P3", "OK")), range(3))
    report = inspect_host(replace(view, environ={**view.environ, "ASCEND_RT_VISIBLE_DEVICES": "2"}))
    assert (report.soc, report.usable_chips) == ("310p", (2,))


def test_a_card_that_is_divided_into_virtual_npus_is_not_used(host: Host) -> None:
    """vdavinci100 to 115 are of card 0, 116 to 131 of card 1 (guide to npu-smi, create-vnpu)."""
    view = host(table(*(("910B3", "OK"),) * 3), range(3), managers=(*MANAGERS, "vdavinci100", "vdavinci117"))
    report = inspect_host(view)
    assert report.usable_chips == (2,)
    finding = examine_npu(report)
    assert "virtual NPUs: 0 (vdavinci100); 1 (vdavinci117)" in finding.what
    assert "destroy-vnpu" in finding.fix


def test_a_virtual_npu_in_a_container_is_its_card(host: Host) -> None:
    assert inspect_host(host(table(("310P3", "OK")), [100])).usable_chips == (100,)


def test_a_table_whose_device_column_is_empty_has_the_numbers_of_its_cards(host: Host) -> None:
    text = table(("910B3", "OK"), ("910B3", "OK")).replace("| 0 | 0000", "| 0       NA | 0000")
    assert inspect_host(host(text, [0, 1])).usable_chips == (0, 1)


def test_a_card_that_this_user_or_container_may_not_open_is_not_used(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes exist where a pod mounts /dev, but its rules allow some only."""
    view = host(table(*(("910B3", "OK"),) * 3), range(3))
    monkeypatch.setattr(device_nodes.os, "access", lambda node, _mode: node.name != "davinci1")
    monkeypatch.setattr(device_nodes.os, "geteuid", lambda: 0)
    report = inspect_host(view)
    assert report.usable_chips == (0, 2)
    finding = examine_npu(report)
    assert "davinci1 may not be opened in this container" in finding.what
    assert "--device" in finding.fix


def cann_findings(view: HostView) -> list[HostFinding]:
    disk = DiskSpace(free=1, needed=1, free_on=lambda _folder: 1, images=1)
    return [one for one in examine_host(inspect_host(view), zig=True, disk=disk) if one.topic == "CANN"]


def examine_npu(report: HostReport) -> HostFinding:
    disk = DiskSpace(free=1, needed=1, free_on=lambda _folder: 1, images=1)
    return next(one for one in examine_host(report, zig=True, disk=disk) if one.topic == "NPU")


def test_all_reasons_against_all_cards_are_named(host: Host) -> None:
    """Seeded: an unhealthy card, one without a node, one in use, one that the driver lost."""
    text = table(("910B3", "Critical"), ("910B3", "OK"), ("910B3", "OK"))
    text += "\n| 3     910B3 | Alarm | - - - / - |\n| NPU  Chip | Process id | Process name | memory |\n"
    text += "| 2   0 | 77 | python3 | 1200 |"
    reason = why_no_card(inspect_host(host(text, [0, 2, 3])))
    for part in ("unhealthy: 0 (Critical)", "no /dev/davinci node: 1", "2/0 by pid 77", "details: card 3"):
        assert part in reason


def test_containers_get_the_nodes_that_newer_drivers_add(host: Host) -> None:
    view = host("", [0, 1], managers=(*MANAGERS, "dvpp_cmdlist", "uburma/udma0", "ummu/tid"))
    names = [Path(node).relative_to(view.dev).as_posix() for node in card_nodes("1", view.dev)[0]]
    assert names == ["davinci1", *MANAGERS, "dvpp_cmdlist", "uburma/udma0", "ummu/tid"]


def test_a_container_gets_the_parts_of_the_driver_that_it_needs_and_not_the_whole_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the whole folder, containers on A3 hosts were reported to fail; HCCL of 950 needs `topo`."""
    for name in ("lib64", "kernel", "topo", "tools"):
        (tmp_path / name).mkdir()
    for name in ("version.info", "tools/hccn_tool", "tools/upgrade-tool"):
        (tmp_path / name).touch()
    monkeypatch.setattr(driver_files, "driver_folder", lambda: tmp_path)
    found = {path for path in driver_files.driver_files() if path.startswith(str(tmp_path))}
    assert found == {str(tmp_path / name) for name in ("lib64", "version.info", "topo", "tools/hccn_tool")}
