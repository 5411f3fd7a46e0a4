"""Rehearses faults of NPU hosts: whether `doctor` and `plan` name each of them on a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.devices.cards.device_nodes import FEWER_NODES, MANAGER_NODES
from harness.devices.stand_in.host_faults import HostFault, host_faults
from harness.settings import Settings
from harness.workspace.execution.rehearsal import HostGroup, output_on_stand_in

#: A check on one card, without the recipe of the cell.
CHECK = "device-sample"
#: How `plan` begins the reason of a check that is not run because of the host's cards.
_NOT_RUN = "no card of this host can be used: "


@dataclass(frozen=True, kw_only=True)
class RehearsedFault:
    """What became of a fault. problem: what npu-matrix did not say, or said wrongly; "" if it is named."""

    fault: str
    told: str
    problem: str


def rehearse_faults(group: HostGroup, folder: Path, settings: Settings) -> Iterator[RehearsedFault]:
    """Run `doctor` and `plan` on the stand-in host of the group, first without a fault, then with each."""
    needed = FEWER_NODES.get(group.host.shape.soc, MANAGER_NODES)
    sound = HostFault(name="none", damage=lambda _folder: None, told="chips usable")
    plan = ("plan", "--only", group.ids[0], "--check", CHECK)
    for fault in (sound, *host_faults(len(needed))):
        doctor = output_on_stand_in(group, folder, settings, ("doctor",), fault)
        planned = output_on_stand_in(group, folder, settings, plan, fault)
        yield RehearsedFault(
            fault=fault.name, told=_line(doctor, fault.told), problem=why_not(fault, doctor, planned)
        )


def why_not(fault: HostFault, doctor: str, planned: str) -> str:
    """What `doctor` or `plan` does not say of the fault, or says wrongly; "" if both are right."""
    if fault.told not in doctor:
        return f"doctor does not say: {fault.told}"
    if fault.planned and fault.planned not in planned:
        return f"plan does not say: {fault.planned}"
    if not fault.planned and _NOT_RUN in planned:
        return f"plan says {_line(planned, _NOT_RUN)}, though cards can be used"
    return ""


def _line(output: str, text: str) -> str:
    return next((" ".join(line.split()) for line in output.splitlines() if text in line), "")
