"""Faults that a stand-in shows: each changes what is read, and what `doctor` or `plan` leave out is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.devices.host.host_inspection import HostView, inspect_host
from harness.devices.stand_in.host_faults import HostFault, host_faults
from harness.devices.stand_in.host_shapes import SHAPES
from harness.devices.stand_in.host_tree import NODES, PCI, StandIn, write_host
from harness.workspace.execution.rehearsed_faults import why_not


def view_of(folder: Path, soc: str) -> HostView:
    """The stand-in in the folder, without a mount: its npu-smi prints the files of the folder."""
    for name in json.loads((folder / NODES).read_text()):
        (folder / "dev").mkdir(exist_ok=True)
        (folder / "dev" / name).touch()
    bus = folder / "sys/bus/pci"
    bus.mkdir(parents=True)
    (bus / "devices").symlink_to(folder / PCI)
    smi = folder / "usr/local/bin/npu-smi"
    smi.write_text(smi.read_text().replace("/usr/local/Ascend", f"{folder}/ascend"))
    return HostView(
        dev=folder / "dev",
        ascend=folder / "ascend",
        root=folder,
        environ={"PATH": "/usr/bin:/bin"},
        which=lambda _: None,
    )


SLOW = ("npu-smi hangs",)


@pytest.mark.parametrize("soc", ["a2", "a3", "310p"])
@pytest.mark.parametrize(
    "fault", [one for one in host_faults(3) if one.name not in SLOW], ids=lambda one: one.name
)
def test_cards_that_can_be_used_are_those_that_plan_offers(
    fault: HostFault, soc: str, tmp_path: Path
) -> None:
    write_host(tmp_path, StandIn(shape=SHAPES[soc], cann="8.5.0"))
    fault.damage(tmp_path)
    host = inspect_host(view_of(tmp_path, soc))
    older = "older" in fault.name
    assert bool(host.usable_chips) == (not fault.planned or older)
    assert not host.usable_chips or host.soc == soc


def test_what_is_not_said_is_a_problem() -> None:
    fault = HostFault(name="x", damage=lambda _folder: None, told="a link is DOWN", planned="no card")
    assert "doctor does not say" in why_not(fault, "all is well", "")
    assert "plan does not say" in why_not(fault, "1 (a link is DOWN)", "3 tasks")
    assert why_not(fault, "1 (a link is DOWN)", "no card") == ""
    usable = HostFault(name="x", damage=lambda _folder: None, told="unhealthy")
    refused = "no card of this host can be used: unhealthy"
    assert "though cards can be used" in why_not(usable, "unhealthy: 1", refused)
    assert why_not(usable, "unhealthy: 1", "3 tasks") == ""
