"""Inspects the machine on which this runs: NPUs, their driver and network, CANN, compiler, tools."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.cell_program.cann_version import version_in
from harness.devices.cards.assigned_cards import AssignedCards, assigned_cards
from harness.devices.cards.device_nodes import (
    FEWER_NODES,
    MANAGER_NODES,
    ClosedNode,
    closed_node,
    davinci_numbers,
    divided_cards,
)
from harness.devices.cards.driver_files import (
    ASCEND,
    CardPassthrough,
    driver_folder,
    inspect_card_passthrough,
    npu_smi_place,
)
from harness.devices.host.cann_state import inspect_cann
from harness.devices.host.npu_smi import Chip, NpuReport, cards_may_work, parse_npu_smi
from harness.devices.host.soc import pci_family, soc_family
from harness.devices.sim.runtime_build.compiler import COMPILER_NAMES
from harness.errors import InfrastructureError

NPU_SMI_TIMEOUT_S = 20.0
PCI_DEVICES = "sys/bus/pci/devices"


@dataclass(frozen=True, kw_only=True)
class HostView:
    """The folders and variables to inspect, which tests replace. root: the folder with `etc` and `usr`."""

    dev: Path = Path("/dev")
    ascend: Path = ASCEND
    root: Path = Path("/")
    environ: Mapping[str, str]
    which: Callable[[str], str | None] = shutil.which

    @property
    def npu_smi(self) -> str | None:
        """npu-smi, also where it is not on PATH."""
        place = npu_smi_place(self.root)
        return self.which("npu-smi") or (str(place) if place else None)

    @property
    def driver(self) -> Path:
        """The folder of the driver."""
        return driver_folder(self.root, self.ascend)


@dataclass(frozen=True, kw_only=True)
class SmiReading:
    """What npu-smi says. report: None with the error and what to do; both are "" on a host without NPUs.

    cards_may_work: whether programs may use the cards though npu-smi reports none.
    """

    report: NpuReport | None = None
    error: str = ""
    fix: str = ""
    cards_may_work: bool = False


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """The facts about a host.

    npu: the output of npu-smi, None when there is none. npu_error, npu_fix: why the cards cannot be used, and
    what to do. unread: npu-smi fails, but programs may use the cards. pci_soc: the SoC family on the PCI bus.
    davinci: numbers of the device nodes. missing_nodes: manager nodes that do not exist.
    not_open: why this user may not use the manager nodes. closed: davinci number -> why this user may not
    open that card. divided: davinci number -> its virtual NPUs, which cannot be used together with the card.
    assigned: the cards of this job, None if it may use all. driver: its version, known even if npu-smi fails.
    passthrough: whether cards can be passed into containers, None on a host without cards. cann_problems:
    what does not fit in the installation of CANN, each with what to do. shm_bytes: size of the shared memory,
    None if it is unknown. machine: the architecture, such as `aarch64`; "" if any will do.
    """

    npu: NpuReport | None
    npu_error: str
    npu_fix: str = ""
    unread: bool = False
    pci_soc: str = ""
    davinci: tuple[int, ...]
    missing_nodes: tuple[str, ...]
    not_open: ClosedNode | None = None
    closed: Mapping[int, ClosedNode] = field(default_factory=dict)
    divided: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    assigned: AssignedCards | None = None
    driver: str = ""
    passthrough: CardPassthrough | None = None
    cann: str
    cann_problems: tuple[tuple[str, str], ...] = ()
    compiler: str
    git: str
    container_engines: tuple[str, ...]
    cpus: int
    shm_bytes: int | None = None
    machine: str = ""

    @property
    def usable_chips(self) -> tuple[int, ...]:
        """davinci numbers of this job's healthy chips of `soc` that have a device node, which this user may
        open, and that no process uses.

        If npu-smi cannot report, all device nodes count.
        """
        if self.missing_nodes or self.not_open:
            return ()
        kept = [card for card in self.own_cards if card not in self.closed and card not in self.divided]
        if self.npu is None:
            return tuple(kept) if self.unread else ()
        busy = {(process.card, process.chip) for process in self.npu.processes}
        unfit = {chip.index for chip in self.npu.chips if not chip.healthy or (chip.card, chip.chip) in busy}
        unfit |= {chip.index for chip in self.other_chips}
        # A damaged table may list a device twice, once healthy and once not.
        listed = dict.fromkeys(chip.index for chip in self.npu.chips)
        return tuple(index for index in listed if index in kept and index not in unfit)

    @property
    def own_cards(self) -> tuple[int, ...]:
        """davinci numbers of the device nodes that this job may use."""
        return self.davinci if self.assigned is None else self.assigned.cards

    @property
    def own_chips(self) -> tuple[Chip, ...]:
        """The chips that npu-smi lists, without those that are not assigned to this job."""
        chips = self.npu.chips if self.npu else ()
        return tuple(chip for chip in chips if self.assigned is None or chip.index in self.assigned.cards)

    @property
    def soc(self) -> str:
        """SoC family of most of the job's chips, "" when there are none or the family is unknown."""
        if not self.own_chips:
            return self.pci_soc if self.unread else ""
        return Counter(map(self.family, self.own_chips)).most_common(1)[0][0]

    @property
    def other_chips(self) -> tuple[Chip, ...]:
        """The job's chips of another family than `soc`."""
        return tuple(chip for chip in self.own_chips if self.family(chip) != self.soc)

    def family(self, chip: Chip) -> str:
        """The SoC family of a chip of this host."""
        per_card = sum(other.card == chip.card for other in self.npu.chips) if self.npu else 1
        return soc_family(chip.name, chips_per_card=per_card)


def inspect_host(view: HostView) -> HostReport:
    """Inspect the host. Missing parts are reported, never raised."""
    nodes, smi = davinci_numbers(view.dev), read_npu_smi(view)
    cann = inspect_cann(view.environ, view.ascend)
    unread = smi.cards_may_work and bool(nodes)
    report = HostReport(
        npu=smi.report,
        npu_error=smi.error,
        npu_fix=smi.fix,
        unread=unread,
        pci_soc=pci_family(view.root / PCI_DEVICES),
        davinci=nodes,
        missing_nodes=(),
        not_open=next(filter(None, (closed_node(view.dev / name) for name in MANAGER_NODES)), None),
        closed={card: one for card in nodes if (one := closed_node(view.dev / f"davinci{card}"))},
        divided=divided_cards(view.dev),
        assigned=assigned_cards(view.environ, nodes),
        driver=(smi.report.version if smi.report else "") or version_in(view.driver / "version.info"),
        passthrough=inspect_card_passthrough(view.root) if smi.report or smi.error else None,
        cann=cann.version,
        cann_problems=cann.problems,
        compiler=next((path for name in COMPILER_NAMES if (path := view.which(name))), ""),
        git=view.which("git") or "",
        container_engines=tuple(name for name in ("docker", "podman") if view.which(name)),
        cpus=os.cpu_count() or 1,
        shm_bytes=_size(view.dev / "shm"),
        machine=platform.machine(),
    )
    if smi.report is None and not unread:
        return report
    needed = FEWER_NODES.get(report.soc, MANAGER_NODES)
    return replace(report, missing_nodes=tuple(name for name in needed if not (view.dev / name).exists()))


def lost_cards(cards: Sequence[int], view: HostView) -> dict[int, str]:
    """The cards (davinci numbers) that can no longer be used, each with the reason.

    Without npu-smi only the device nodes are checked.
    """
    nodes = davinci_numbers(view.dev)
    lost = {card: f"{view.dev}/davinci{card} no longer exists" for card in cards if card not in nodes}
    smi = read_npu_smi(view)
    if smi.report is None:
        failed = {} if smi.cards_may_work else {card: smi.error for card in cards if card not in lost}
        return lost | failed
    chips = {chip.index: chip for chip in smi.report.chips}
    for card in cards:
        if card not in chips:
            lost.setdefault(card, "npu-smi no longer lists it")
        elif not chips[card].healthy:
            lost.setdefault(card, f"npu-smi reports its health as {chips[card].health}")
    return lost


def read_npu_smi(view: HostView) -> SmiReading:
    """Run npu-smi. If it may not look at the cards, or there is none, device nodes show that cards exist."""
    nodes, program = davinci_numbers(view.dev), view.npu_smi
    if program is None:
        if not nodes:
            return SmiReading()
        return SmiReading(
            error="there are device nodes, but npu-smi is not on PATH",
            fix="install the driver, or mount npu-smi and the driver into this container",
            cards_may_work=True,
        )
    try:
        done = subprocess.run(
            [program, "info"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=NPU_SMI_TIMEOUT_S,
            check=False,
            env={**view.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        why = f"npu-smi did not finish within {NPU_SMI_TIMEOUT_S:g} s; the driver may hang"
        return SmiReading(
            error=why, fix="check `dmesg`; reset the card with `npu-smi set -t reset`, or reboot"
        )
    except OSError as problem:
        why = f"npu-smi cannot be run: {problem}"
        return SmiReading(error=why, fix="make it executable for this user", cards_may_work=True)
    text = done.stdout + done.stderr
    try:
        return SmiReading(report=_number_by_nodes(parse_npu_smi(text), nodes))
    except InfrastructureError as problem:
        explained = problem.problems[0]
        code = f" (exit code {done.returncode})" if done.returncode else ""
        return SmiReading(
            error=f"{explained.what}: {explained.why}{code}",
            fix=explained.fix,
            cards_may_work=cards_may_work(text),
        )


def _number_by_nodes(report: NpuReport, nodes: Sequence[int]) -> NpuReport:
    """The report with device numbers from the nodes, if none of its own is that of a node.

    Its numbers are then slots, or those of the host for a container's cards. This is possible because npu-smi
    lists cards in the order in which the driver numbers them.
    """
    numbers = {chip.index for chip in report.chips}
    if numbers & set(nodes) or len(nodes) != len(report.chips):
        return report
    chips = (replace(chip, index=node) for chip, node in zip(report.chips, nodes, strict=True))
    return replace(report, chips=tuple(chips))


def _size(folder: Path) -> int | None:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return None
    return facts.f_blocks * facts.f_frsize
