"""Inspects the machine on which this runs: NPUs, their driver and network, CANN, compiler, tools."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.cell_program.cann_version import cann_folders, installed_version, version_in
from harness.devices.cards.device_nodes import (
    MANAGER_NODES,
    CardPassthrough,
    davinci_numbers,
    inspect_card_passthrough,
)
from harness.devices.host.npu_smi import NpuReport, parse_npu_smi
from harness.devices.host.soc import soc_family
from harness.devices.sim.runtime_build.compiler import COMPILER_NAMES
from harness.errors import InfrastructureError

NPU_SMI_TIMEOUT_S = 20.0
ASCEND = Path("/usr/local/Ascend")


@dataclass(frozen=True, kw_only=True)
class HostView:
    """The folders and variables to inspect, which tests replace. root: the folder with `etc` and `usr`."""

    dev: Path = Path("/dev")
    ascend: Path = ASCEND
    root: Path = Path("/")
    environ: Mapping[str, str]
    which: Callable[[str], str | None] = shutil.which


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """The facts about a host.

    npu: the output of npu-smi, None when there is none. npu_error, npu_fix: why the cards cannot be used, and
    what to do. davinci: numbers of the device nodes. missing_nodes: manager nodes that do not exist. driver:
    the driver's version, known even if npu-smi fails. passthrough: whether cards can be passed into
    containers, None on a host without cards. shm_bytes: size of the shared memory, None if it is unknown.
    machine: the architecture, such as `aarch64`; "" if any will do.
    """

    npu: NpuReport | None
    npu_error: str
    npu_fix: str = ""
    davinci: tuple[int, ...]
    missing_nodes: tuple[str, ...]
    driver: str = ""
    passthrough: CardPassthrough | None = None
    cann: str
    compiler: str
    git: str
    container_engines: tuple[str, ...]
    cpus: int
    shm_bytes: int | None = None
    machine: str = ""

    @property
    def usable_chips(self) -> tuple[int, ...]:
        """davinci numbers of healthy chips that have a device node and that no process uses."""
        if self.npu is None or self.missing_nodes:
            return ()
        busy = {(process.card, process.chip) for process in self.npu.processes}
        unfit = {chip.index for chip in self.npu.chips if not chip.healthy or (chip.card, chip.chip) in busy}
        # A damaged table may list a device twice, once healthy and once not.
        listed = dict.fromkeys(chip.index for chip in self.npu.chips)
        return tuple(index for index in listed if index in self.davinci and index not in unfit)

    @property
    def soc(self) -> str:
        """SoC family of the cards, "" when there are none or the family is unknown."""
        if self.npu is None or not self.npu.chips:
            return ""
        first = self.npu.chips[0]
        per_card = sum(chip.card == first.card for chip in self.npu.chips)
        return soc_family(first.name, chips_per_card=per_card)


def inspect_host(view: HostView) -> HostReport:
    """Inspect the host. Missing parts are reported, never raised."""
    nodes = davinci_numbers(view.dev)
    npu, error, fix = read_npu_smi(view)
    has_npu = npu is not None or bool(error)
    missing = tuple(name for name in MANAGER_NODES if not (view.dev / name).exists()) if npu else ()
    return HostReport(
        npu=npu,
        npu_error=error,
        npu_fix=fix,
        davinci=nodes,
        missing_nodes=missing,
        driver=(npu.version if npu else "") or version_in(view.ascend / "driver/version.info"),
        passthrough=inspect_card_passthrough(view.root) if has_npu else None,
        cann=_cann(view),
        compiler=next((path for name in COMPILER_NAMES if (path := view.which(name))), ""),
        git=view.which("git") or "",
        container_engines=tuple(name for name in ("docker", "podman") if view.which(name)),
        cpus=os.cpu_count() or 1,
        shm_bytes=_size(view.dev / "shm"),
        machine=platform.machine(),
    )


def lost_cards(cards: Sequence[int], view: HostView) -> dict[int, str]:
    """The cards (davinci numbers) that can no longer be used, each with the reason.

    Without npu-smi only the device nodes are checked.
    """
    nodes = davinci_numbers(view.dev)
    lost = {card: f"{view.dev}/davinci{card} no longer exists" for card in cards if card not in nodes}
    if view.which("npu-smi") is None:
        return lost
    npu, error, _ = read_npu_smi(view)
    if npu is None:
        return lost | {card: error for card in cards if card not in lost}
    chips = {chip.index: chip for chip in npu.chips}
    for card in cards:
        if card not in chips:
            lost.setdefault(card, "npu-smi no longer lists it")
        elif not chips[card].healthy:
            lost.setdefault(card, f"npu-smi reports its health as {chips[card].health}")
    return lost


def read_npu_smi(view: HostView) -> tuple[NpuReport | None, str, str]:
    """The report of npu-smi, or None with the error and what to do; both are "" on a host without NPUs."""
    nodes = davinci_numbers(view.dev)
    program = view.which("npu-smi")
    if program is None:
        fix = "install the driver, or mount npu-smi and the driver into this container"
        return None, *(("there are device nodes, but npu-smi is not on PATH", fix) if nodes else ("", ""))
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
        return None, why, "check `dmesg`; reset the card with `npu-smi set -t reset`, or reboot"
    except OSError as problem:
        return None, f"npu-smi cannot be run: {problem}", "make it executable for this user"
    try:
        return _number_by_nodes(parse_npu_smi(done.stdout + done.stderr), nodes), "", ""
    except InfrastructureError as problem:
        explained = problem.problems[0]
        code = f" (exit code {done.returncode})" if done.returncode else ""
        return None, f"{explained.what}: {explained.why}{code}", explained.fix


def _number_by_nodes(report: NpuReport, nodes: Sequence[int]) -> NpuReport:
    """The report with device numbers from the nodes, if the table has none and its card numbers are slots.

    This is possible because npu-smi lists cards in the order in which the driver numbers them.
    """
    numbers = {chip.index for chip in report.chips}
    if report.numbered or numbers & set(nodes) or len(nodes) != len(report.chips):
        return report
    chips = (replace(chip, index=node) for chip, node in zip(report.chips, nodes, strict=True))
    return replace(report, chips=tuple(chips))


def _cann(view: HostView) -> str:
    return next(filter(None, map(installed_version, cann_folders(view.environ, view.ascend))), "")


def _size(folder: Path) -> int | None:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return None
    return facts.f_blocks * facts.f_frsize
