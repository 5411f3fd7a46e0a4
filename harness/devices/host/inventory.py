"""Looks at the machine this runs on: NPUs, their driver and network, CANN, compiler, tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.devices.cards.device_nodes import (
    MANAGER_NODES,
    CardPassthrough,
    davinci_numbers,
    inspect_card_passthrough,
)
from harness.devices.host.card_network import CardNetwork, query_card_network
from harness.devices.host.npu_smi import NpuReport, parse_npu_smi
from harness.devices.host.soc import soc_family
from harness.errors import InfrastructureError

NPU_SMI_TIMEOUT_S = 20.0
#: CANN 8.5 and later install to `cann`, earlier ones to `ascend-toolkit`.
CANN_ROOTS = ("cann/latest", "cann", "ascend-toolkit/latest", "latest")
COMPILERS = ("cc", "gcc", "clang")


@dataclass(frozen=True, kw_only=True)
class HostView:
    """Where to look; tests point it at a folder of their own. `root` is where `etc` and `usr` are."""

    dev: Path = Path("/dev")
    ascend: Path = Path("/usr/local/Ascend")
    root: Path = Path("/")
    environ: Mapping[str, str]
    which: Callable[[str], str | None] = shutil.which


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """The facts about a host. `npu_error`: why its cards cannot be used; `npu_fix`: how to repair that.

    driver: the driver's version, also if npu-smi fails. passthrough: how cards are passed into containers;
    None on a host without cards. shm_bytes: size of the shared memory, None if it is unknown.
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

    @property
    def usable_chips(self) -> tuple[int, ...]:
        """davinci numbers of healthy chips with a device node and no foreign process."""
        if self.npu is None or self.missing_nodes:
            return ()
        busy = {(process.card, process.chip) for process in self.npu.processes}
        unfit = {chip.index for chip in self.npu.chips if not chip.healthy or (chip.card, chip.chip) in busy}
        # A damaged table may name a device twice, as fit and as unfit.
        named = dict.fromkeys(chip.index for chip in self.npu.chips)
        return tuple(index for index in named if index in self.davinci and index not in unfit)

    @property
    def soc(self) -> str:
        """Family of the cards, "" when there are none or nobody here knows them."""
        if self.npu is None or not self.npu.chips:
            return ""
        first = self.npu.chips[0]
        per_card = sum(chip.card == first.card for chip in self.npu.chips)
        return soc_family(first.name, chips_per_card=per_card)


def inspect_host(view: HostView) -> HostReport:
    """Look at the host; never raises for what is missing."""
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
        driver=(npu.version if npu else "") or _version(view.ascend / "driver/version.info"),
        passthrough=inspect_card_passthrough(view.root) if has_npu else None,
        cann=_cann(view),
        compiler=next((path for name in COMPILERS if (path := view.which(name))), ""),
        git=view.which("git") or "",
        container_engines=tuple(name for name in ("docker", "podman") if view.which(name)),
        cpus=os.cpu_count() or 1,
        shm_bytes=_size(view.dev / "shm"),
    )


def inspect_card_network(view: HostView, cards: Sequence[int]) -> CardNetwork:
    """The cards' network; asks a program once or twice for each card, so only `doctor` does."""
    return query_card_network(cards, view.ascend, view.which, view.environ)


def lost_cards(cards: Sequence[int], view: HostView) -> dict[int, str]:
    """Those of `cards` (davinci numbers) that cannot be used any more, and what became of each.

    Where npu-smi is not at hand only the device nodes tell.
    """
    nodes = davinci_numbers(view.dev)
    lost = {card: f"{view.dev}/davinci{card} is gone" for card in cards if card not in nodes}
    if view.which("npu-smi") is None:
        return lost
    npu, error, _ = read_npu_smi(view)
    if npu is None:
        return lost | {card: error for card in cards if card not in lost}
    chips = {chip.index: chip for chip in npu.chips}
    for card in cards:
        if card not in chips:
            lost.setdefault(card, "npu-smi lists it no more")
        elif not chips[card].healthy:
            lost.setdefault(card, f"npu-smi calls it {chips[card].health}")
    return lost


def read_npu_smi(view: HostView) -> tuple[NpuReport | None, str, str]:
    """What npu-smi reports, or why it does not and what helps; two empty texts where there is no NPU."""
    nodes = davinci_numbers(view.dev)
    program = view.which("npu-smi")
    if program is None:
        fix = "install the driver, or mount npu-smi and the driver into this container"
        return None, *(("device nodes but no npu-smi on PATH", fix) if nodes else ("", ""))
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
        why = f"npu-smi did not answer within {NPU_SMI_TIMEOUT_S:g} s; the driver may hang"
        return None, why, "see `dmesg`; reset the card with `npu-smi set -t reset`, or reboot"
    except OSError as problem:
        return None, f"npu-smi cannot be run: {problem}", "make it executable for this user"
    try:
        return _number_by_nodes(parse_npu_smi(done.stdout + done.stderr), nodes), "", ""
    except InfrastructureError as problem:
        explained = problem.problems[0]
        code = f" (exit code {done.returncode})" if done.returncode else ""
        return None, f"{explained.what}: {explained.why}{code}", explained.fix


def _number_by_nodes(report: NpuReport, nodes: Sequence[int]) -> NpuReport:
    """With device numbers where the table has none and card numbers are slots: then the order tells.

    npu-smi lists cards in the order in which the driver counts them.
    """
    numbers = {chip.index for chip in report.chips}
    if report.numbered or numbers & set(nodes) or len(nodes) != len(report.chips):
        return report
    chips = (replace(chip, index=node) for chip, node in zip(report.chips, nodes, strict=True))
    return replace(report, chips=tuple(chips))


def _cann(view: HostView) -> str:
    named = (view.environ.get(name) for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"))
    roots = [Path(home) for home in named if home] + [view.ascend / part for part in CANN_ROOTS]
    for root in roots:
        for file in sorted(root.glob("*/ascend_toolkit_install.info")) + sorted(root.glob("version.cfg")):
            if found := _version(file):
                return found
    return ""


def _size(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _version(file: Path) -> str:
    """`version=8.5.0`, `Version=25.5.2`, or what follows the colon in `..._version=[7.6.0.1.220:8.0.0]`."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(r"version\s*=\s*\[?(?:[\w.\-]+:)?([\w.\-]+)", text, re.IGNORECASE)
    return match.group(1) if match else ""
