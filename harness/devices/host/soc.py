"""SoC families by the chip names that tools print, and the driver published with each CANN release."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Chip names in npu-smi and torch_npu -> family. 910B1 to 910B4(-1) are Atlas A2; Ascend910_93xx and the
#: two-chip `Ascend910` cards are Atlas A3; 310P are inference cards; 950 is the A5 line. Sources: the runner
#: labels of vllm-ascend and the tags of the CANN images.
FAMILIES = (
    (re.compile(r"^(?:Ascend)?910B\d?(?:-\d)?$", re.IGNORECASE), "a2"),
    (re.compile(r"^(?:Ascend)?910_93\d\d$", re.IGNORECASE), "a3"),
    (re.compile(r"^(?:Ascend)?310P\d?$", re.IGNORECASE), "310p"),
    (re.compile(r"^(?:Ascend)?950\w*$", re.IGNORECASE), "a5"),
)


def soc_family(name: str, *, chips_per_card: int = 1) -> str:
    """`a2`, `a3`, `a5`, `310p`, or "" for an unknown name. A plain `Ascend910` with two chips is A3."""
    for pattern, family in FAMILIES:
        if pattern.match(name):
            return family
    if name.lower() in {"ascend910", "910"} and chips_per_card == 2:
        return "a3"
    return ""


#: SoC family -> values of the property `ascend :: npu_type` of wheel variants. Sources: the variants that
#: vllm-ascend builds (.github/workflows/scripts/wheel/config.json), and what the provider detects
#: (wheelnext/huawei-ascend-variant-provider, pysmi.py: 910B is `910b` at first and `a2` later).
NPU_TYPES = {"a2": ("910b", "a2"), "a3": ("a3",), "310p": ("310p",)}


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
    line = _release_line(cann)
    published = [row for row in PUBLISHED_DRIVERS if line is not None and row.cann <= line]
    return published[-1] if published else None


def driver_misfit(cann: str, driver: str) -> str:
    """A sentence if the driver is older than the one with which `cann` is published, otherwise "".

    Versions that cannot be parsed count as compatible.
    """
    published, driver_line = published_driver(cann), _release_line(driver)
    if published is None or driver_line is None or driver_line >= published.driver:
        return ""
    needed, source = ".".join(map(str, published.driver)), published.source
    return f"CANN {cann} is published with driver {needed} or newer, this host has {driver} ({source})"


def is_driver_version(text: str) -> bool:
    """Whether the text begins like a driver version, such as 25.5.0 or 26.0.rc1."""
    return _release_line(text) is not None


def _release_line(version: str) -> tuple[int, int] | None:
    match = re.match(r"^(\d+)\.(\d+)", version)
    return (int(match.group(1)), int(match.group(2))) if match else None
