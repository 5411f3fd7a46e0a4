"""The files of the NPU driver on a host, and whether cards can be passed into containers.

Drivers are installed to /usr/local/Ascend/driver unless /etc/ascend_install.info names another folder, and
npu-smi is installed to /usr/local/bin or /usr/local/sbin.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
#: The folder of Ascend's software if nothing names another one.
ASCEND = Path("/usr/local/Ascend")
INSTALL_RECORD = Path("/etc/ascend_install.info")
DAEMON_SETTINGS = Path("/etc/docker/daemon.json")
#: Where releases of the driver install npu-smi. The second is not on the PATH of every user.
NPU_SMI_PLACES = (Path("/usr/local/bin/npu-smi"), Path("/usr/local/sbin/npu-smi"))
DCMI = Path("/usr/local/dcmi")
#: Files that containers get if the host has them: the addresses of the cards' ports and, since 950, the
#: topology of their links. Sources: the guides of vllm-ascend for several hosts, MindCluster's base.list.
OPTIONAL_FILES = (Path("/etc/hccn.conf"), Path("/etc/hccl_rootinfo.json"))
#: What containers get of the driver's folder: its libraries and version, the topology that HCCL reads since
#: 950, and the tool that asks the cards' ports. Not the whole folder, with which containers on A3 hosts were
#: reported to fail. Sources: vllm-ascend's guides of installation and of several hosts, vllm-project/recipes
#: PR 907 (topo).
DRIVER_PARTS = ("lib64", "version.info", "topo", "tools/hccn_tool")
_DRIVER_PATH = re.compile(r"^\s*Driver_Install_Path_Param\s*=\s*(/\S*)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class CardPassthrough:
    """Whether cards can be passed into containers.

    runtime: whether Ascend Docker Runtime is registered with the daemon. missing: driver files that this host
    does not have. Cells get their cards by plain devices and mounts. This also works with Ascend Docker
    Runtime, which ignores containers without ASCEND_VISIBLE_DEVICES.
    """

    runtime: bool
    missing: tuple[str, ...]


def below(root: Path, path: Path) -> Path:
    """The absolute path in the file system at `root`."""
    return root / path.relative_to("/")


def driver_folder(root: Path = ROOT, ascend: Path | None = None) -> Path:
    """The folder of the driver in the file system at `root`: where its installer recorded it, if it is there.

    ascend: the folder of Ascend's software, by default /usr/local/Ascend.
    """
    usual = (ascend or below(root, ASCEND)) / "driver"
    try:
        recorded = _DRIVER_PATH.search(below(root, INSTALL_RECORD).read_text("utf-8", errors="replace"))
    except OSError:
        return usual
    folder = below(root, Path(recorded.group(1))) / "driver" if recorded else usual
    return folder if folder.is_dir() else usual


def npu_smi_place(root: Path = ROOT) -> Path | None:
    """npu-smi in one of the folders to which drivers install it."""
    return next((place for path in NPU_SMI_PLACES if (place := below(root, path)).is_file()), None)


def inspect_card_passthrough(root: Path = ROOT) -> CardPassthrough:
    """Inspect the host whose file system is at `root`."""
    smi = npu_smi_place(root) or below(root, NPU_SMI_PLACES[0])
    needed = (driver_folder(root), below(root, DCMI), smi, below(root, INSTALL_RECORD))
    missing = tuple(str(ROOT / path.relative_to(root)) for path in needed if not path.exists())
    return CardPassthrough(runtime=_registered(below(root, DAEMON_SETTINGS)), missing=missing)


def driver_files() -> list[str]:
    """The driver files that this host has; the container guides of vllm-ascend and verl mount them."""
    parts = (driver_folder() / part for part in DRIVER_PARTS)
    files = [*parts, DCMI, npu_smi_place(), INSTALL_RECORD, *OPTIONAL_FILES]
    return [str(path) for path in files if path is not None and path.exists()]


def _registered(settings: Path) -> bool:
    try:
        content = json.loads(settings.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    runtimes = content.get("runtimes") if isinstance(content, dict) else None
    return isinstance(runtimes, dict) and "ascend" in runtimes
