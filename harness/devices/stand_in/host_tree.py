"""Writes the files of a stand-in host into a folder, from where `enter_host.py` mounts them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from harness.devices.cards.device_nodes import MANAGER_NODES
from harness.devices.host.soc import PCI_FAMILIES, PCI_VENDOR, published_driver
from harness.devices.sim.runtime_build.stand_in_cann import write_cann
from harness.devices.stand_in.host_shapes import HostShape, npu_smi_table
from harness.errors import InputError

#: The folder of a stand-in that becomes /usr/local/Ascend, and the folders laid over those of the machine.
ASCEND, OVER = "ascend", ("etc", "usr/local")
#: The file with the names of the device nodes.
NODES = "nodes.json"
#: Files of a stand-in, in its folder: what npu-smi prints, npu-smi and hccn_tool, and the PCI devices.
TABLE = "ascend/driver/lib64/stand-in/table.txt"
NPU_SMI, HCCN_TOOL = "usr/local/bin/npu-smi", "ascend/driver/tools/hccn_tool"
PCI = "pci"
_NPU_SMI = """\
#!/bin/sh
# The npu-smi of a stand-in host (npu-matrix rehearse): it prints files, no card answers.
here=/usr/local/Ascend/driver/lib64/stand-in
case "$*" in
  *board*) cat "$here/board.txt" ;;
  info) cat "$here/table.txt" ;;
  *) printf 'the npu-smi of a stand-in host knows only info and info -t board\\n' >&2; exit 1 ;;
esac
"""
_HCCN_TOOL = """\
#!/bin/sh
# The hccn_tool of a stand-in host (npu-matrix rehearse): -i CARD -ip -g and -i CARD -link -g.
case "$*" in
  *-ip*) printf 'ipaddr:192.168.%s.NUMBER\\nnetmask:255.255.255.0\\n' "$2" ;;
  *-link*) printf 'link status: UP\\n' ;;
  *) exit 1 ;;
esac
"""
_VERSION = re.compile(r"[\w.+-]{1,60}")


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """A stand-in host: its kind, its CANN and the version of its driver, "" for the published one.

    number: among the hosts of one network, from 0; the ports of its cards have addresses of their own.
    """

    shape: HostShape
    cann: str
    driver: str = ""
    number: int = 0

    @property
    def driver_version(self) -> str:
        """The version of the driver that npu-smi and version.info name."""
        published = published_driver(self.cann)
        return self.driver or (".".join(map(str, published.driver)) + ".0" if published else "25.2.0")


def write_host(folder: Path, host: StandIn) -> tuple[Path, ...]:
    """Write the files of the host; returns the set_env.sh files of its CANN, as a user sources them.

    An earlier stand-in in the folder keeps the libraries of its CANN. InputError for a version that is none.
    """
    if not _VERSION.fullmatch(host.driver_version):
        raise InputError(f"{host.driver_version!r} is not a version of a driver")
    devices, driver = host.shape.devices, folder / ASCEND / "driver"
    _write(driver / "version.info", f"Version={host.driver_version}\n")
    _write(folder / TABLE, npu_smi_table(host.shape, host.driver_version))
    _write(
        folder / TABLE.replace("table", "board"),
        f"\tSoftware Version               : {host.driver_version}\n",
    )
    last = str(host.number + 1)
    _write(folder / HCCN_TOOL, _HCCN_TOOL.replace("NUMBER", last), executable=True)
    for name in ("common", "driver"):
        (driver / "lib64" / name).mkdir(parents=True, exist_ok=True)
    _write(folder / NPU_SMI, _NPU_SMI, executable=True)
    (folder / "usr/local/dcmi").mkdir(parents=True, exist_ok=True)
    (folder / "usr/local/Ascend").mkdir(exist_ok=True)
    _write(folder / "etc/ascend_install.info", "Driver_Install_Path_Param=/usr/local/Ascend\n")
    _write(
        folder / "etc/hccn.conf",
        "".join(f"address_{card}=192.168.{card}.{last}\n" for card in range(devices)),
    )
    number = next(number for number, family in PCI_FAMILIES.items() if family == host.shape.soc)
    for device in range(devices):
        _write(folder / PCI / f"0000:{device + 1:02x}:00.0/vendor", f"{PCI_VENDOR}\n")
        _write(folder / PCI / f"0000:{device + 1:02x}:00.0/device", f"{number}\n")
    nodes = [*(f"davinci{card}" for card in range(devices)), *MANAGER_NODES]
    _write(folder / NODES, json.dumps(nodes))
    return write_cann(folder / ASCEND, host.cann, host.shape.runtime_name, devices)


def _write(path: Path, text: str, *, executable: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    path.chmod(0o755 if executable else 0o644)
