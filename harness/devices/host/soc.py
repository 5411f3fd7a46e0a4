"""SoC families by the chip names that tools print, and the driver published with each CANN release."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

#: Chip names in npu-smi and torch_npu -> family. Sources: the table in NpuVariables.cpp of torch_npu, and the
#: patterns in ascend-common/api of MindCluster, which also has the names A2Gn and I2n. Only a digit makes
#: 910B Atlas A2: 910B alone and 910ProB are of the first generation, like 910A. For A3 npu-smi prints
#: `Ascend910`.
FAMILIES = tuple(
    (re.compile(rf"^(?:Ascend)?(?:{pattern})$", re.IGNORECASE), family)
    for pattern, family in (
        (r"910B\d\w?(?:-\d)?|A2G\d\w*", "a2"),
        (r"910_93\w*", "a3"),
        (r"310P\d?\w*|I2\d?", "310p"),
        (r"950\w*|910_95\w*", "a5"),
        (r"310B\d?\w*", "310b"),
        (r"310", "310"),
        (r"910(?:Pro|Premium)?[AB]", "910"),
    )
)
#: Numbers of devices on the PCI bus -> family; `lspci` prints them. Vendor 19e5 is Huawei.
PCI_VENDOR = "0x19e5"
PCI_FAMILIES = {
    "0xd100": "310",
    "0xd107": "310",
    "0xd500": "310p",
    "0xd801": "910",
    "0xd802": "a2",
    "0xd803": "a3",
}


def soc_family(name: str, *, chips_per_card: int = 1) -> str:
    """The family of a chip: `a2`, `a3`, `a5`, `310p`, `310b`, `310` or `910`, "" for an unknown name.

    A name is that of a chip as npu-smi, the runtime or a wheel has it; `910` with two chips on a card is A3.
    """
    for pattern, family in FAMILIES:
        if pattern.match(name):
            return family
    return "a3" if name.lower() == "ascend910" or (name == "910" and chips_per_card == 2) else ""


def pci_family(bus: Path) -> str:
    """The family of the NPUs on this PCI bus, "" if there are none, or chips of several families.

    bus: the folder `/sys/bus/pci/devices`, in which each device has the files `vendor` and `device`.
    """
    devices = bus.glob("*") if bus.is_dir() else ()
    numbers = {_content(device / "device") for device in devices if _content(device / "vendor") == PCI_VENDOR}
    found = {PCI_FAMILIES[number] for number in numbers if number in PCI_FAMILIES}
    return found.pop() if len(found) == 1 else ""


def _content(file: Path) -> str:
    try:
        return file.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


#: SoC family -> values of the property `ascend :: npu_type` of wheel variants. Sources: the variants that
#: vllm-ascend builds (.github/workflows/scripts/wheel/config.json), and what the provider detects
#: (wheelnext/huawei-ascend-variant-provider, pysmi.py: 910B is `910b` at first and `a2` later).
NPU_TYPES = {"a2": ("910b", "a2"), "a3": ("a3",), "310p": ("310p",)}


def build_family(word: str) -> str:
    """The family that wheels, images and people mean by a word: to them `910b` is A2, unlike to npu-smi."""
    lower = word.lower().removeprefix("ascend").removeprefix("_")
    named = next((family for family, words in NPU_TYPES.items() if lower in words), "")
    return named or soc_family(word)


@dataclass(frozen=True, kw_only=True)
class PublishedDriver:
    """The oldest driver that a document names together with a CANN release line. source: the document."""

    cann: tuple[int, int]
    driver: tuple[int, int]
    source: str


PUBLISHED_DRIVERS = (
    PublishedDriver(cann=(8, 2), driver=(24, 1), source="verl: GSPO practice on Ascend, 24.1.0.3"),
    PublishedDriver(cann=(8, 3), driver=(25, 3), source="verl v0.6.1 SGLang guide: 8.3.RC1, HDK 25.3.RC1"),
    PublishedDriver(cann=(8, 5), driver=(25, 5), source="verl v0.8.0 SGLang guide: 8.5.0, HDK 25.5.0"),
    PublishedDriver(cann=(9, 0), driver=(26, 0), source="verl v0.8.0 quick start: 9.0.0, HDK 26.0.rc1"),
)


def published_driver(cann: str) -> PublishedDriver | None:
    """The oldest driver with which this CANN or an older one is published; None if that is not known."""
    line = release_line(cann)
    published = [row for row in PUBLISHED_DRIVERS if line is not None and row.cann <= line]
    return published[-1] if published else None


def driver_misfit(cann: str, driver: str) -> str:
    """A sentence if the driver is older than the one with which `cann` is published, otherwise "".

    Versions that cannot be parsed count as compatible.
    """
    published, driver_line = published_driver(cann), release_line(driver)
    if published is None or driver_line is None or driver_line >= published.driver:
        return ""
    needed, source = ".".join(map(str, published.driver)), published.source
    return f"CANN {cann} is published with driver {needed} or newer, this host has {driver} ({source})"


def is_driver_version(text: str) -> bool:
    """Whether the text begins like a driver version, such as 25.5.0 or 26.0.rc1."""
    return release_line(text) is not None


def release_line(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version, such as (8, 3) of 8.3.RC1; None if it does not begin with them."""
    match = re.match(r"^(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else None
