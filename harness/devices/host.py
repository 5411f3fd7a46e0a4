"""Looks at the machine this runs on: NPUs, CANN, compiler, tools, disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.devices.npu_smi import NpuReport, parse_npu_smi
from harness.devices.soc import soc_family
from harness.errors import InfrastructureError

NPU_SMI_TIMEOUT_S = 20.0
ENGINE_TIMEOUT_S = 10.0
MANAGER_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
CANN_ROOTS = ("ascend-toolkit/latest", "cann/latest", "latest")
COMPILERS = ("cc", "gcc", "clang")


@dataclass(frozen=True, kw_only=True)
class HostView:
    """Where to look; tests point it at a folder of their own."""

    dev: Path = Path("/dev")
    ascend: Path = Path("/usr/local/Ascend")
    environ: Mapping[str, str]
    which: Callable[[str], str | None] = shutil.which


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """What was found. `npu_error` says why cards that seem to be there cannot be used."""

    npu: NpuReport | None
    npu_error: str
    davinci: tuple[int, ...]
    missing_nodes: tuple[str, ...]
    cann: str
    compiler: str
    git: str
    container_engines: tuple[str, ...]
    cpus: int

    @property
    def usable_chips(self) -> tuple[int, ...]:
        """davinci numbers of healthy chips with a device node and no foreign process."""
        if self.npu is None or self.missing_nodes:
            return ()
        busy = {(process.card, process.chip) for process in self.npu.processes}
        return tuple(
            chip.index
            for chip in self.npu.chips
            if chip.healthy and chip.index in self.davinci and (chip.card, chip.chip) not in busy
        )

    @property
    def soc(self) -> str:
        """Family of the cards, "" when there are none or nobody here knows them."""
        if self.npu is None or not self.npu.chips:
            return ""
        first = self.npu.chips[0]
        per_card = sum(chip.card == first.card for chip in self.npu.chips)
        return soc_family(first.name, chips_per_card=per_card)


def look(view: HostView) -> HostReport:
    """Look at the host; never raises for what is missing."""
    npu, error = _npu(view)
    nodes = _davinci(view.dev)
    missing = tuple(name for name in MANAGER_NODES if not (view.dev / name).exists()) if npu else ()
    return HostReport(
        npu=npu,
        npu_error=error,
        davinci=nodes,
        missing_nodes=missing,
        cann=_cann(view),
        compiler=next((path for name in COMPILERS if (path := view.which(name))), ""),
        git=view.which("git") or "",
        container_engines=tuple(name for name in ("docker", "podman") if view.which(name)),
        cpus=os.cpu_count() or 1,
    )


def _npu(view: HostView) -> tuple[NpuReport | None, str]:
    program = view.which("npu-smi")
    if program is None:
        return None, "device nodes but no npu-smi on PATH" if _davinci(view.dev) else ""
    try:
        done = subprocess.run(
            [program, "info"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=NPU_SMI_TIMEOUT_S,
            check=False,
            env=dict(view.environ),
        )
    except subprocess.TimeoutExpired:
        return None, f"npu-smi did not answer within {NPU_SMI_TIMEOUT_S:g} s; the driver may hang"
    except OSError as problem:
        return None, f"npu-smi cannot be run: {problem}"
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        return None, f"npu-smi failed with code {done.returncode}: {said[0] if said else 'no output'}"
    try:
        return parse_npu_smi(done.stdout), ""
    except InfrastructureError as problem:
        return None, str(problem)


def engine_answers(program: str) -> bool:
    """Whether a container engine can be used: the program alone is not enough, docker wants its daemon."""
    try:
        done = subprocess.run([program, "info"], capture_output=True, timeout=ENGINE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _davinci(dev: Path) -> tuple[int, ...]:
    if not dev.is_dir():
        return ()
    numbers = (re.fullmatch(r"davinci(\d+)", entry.name) for entry in dev.iterdir())
    return tuple(sorted(int(match.group(1)) for match in numbers if match))


def _cann(view: HostView) -> str:
    home = view.environ.get("ASCEND_TOOLKIT_HOME")
    roots = ([Path(home)] if home else []) + [view.ascend / part for part in CANN_ROOTS]
    for root in roots:
        for file in sorted(root.glob("*/ascend_toolkit_install.info")) + sorted(root.glob("version.cfg")):
            match = re.search(
                r"version\s*=\s*\[?([\w.\-]+)",
                file.read_text(encoding="utf-8", errors="replace"),
                re.IGNORECASE,
            )
            if match:
                return match.group(1)
    return ""
