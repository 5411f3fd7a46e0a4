"""Reads the table that `npu-smi info` prints.

Layouts seen in public reports, 24.1.rc3 to 26.0.rc2: one line pair per chip; A2 cards (`910B3`) have one chip
and no Phy-ID column, A3 cards (`Ascend910`) two chips with physical ids; column widths differ between driver
generations, so cells are taken between bars, never by position. A process table follows, one section per NPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.errors import InfrastructureError

VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)")
CARD = re.compile(r"^(\d+)\s+(\S+)$")
CHIP = re.compile(r"^(\d+)(?:\s+(\d+))?$")
USAGE = re.compile(r"(\d+)\s*/\s*(\d+)\s*$")
BUS_ID = re.compile(r"^(?:[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]|NA|N/A)$")


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One chip: a device the runtime can open. `index` is its davinci number; HBM is in MiB."""

    card: int
    chip: int
    index: int
    name: str
    health: str
    bus_id: str
    hbm_used: int
    hbm_total: int

    @property
    def healthy(self) -> bool:
        """True when npu-smi says OK; Warning, Alarm, Critical and UNKNOWN are not."""
        return self.health.upper() == "OK"


@dataclass(frozen=True, kw_only=True)
class CardProcess:
    """A process that holds memory of a chip."""

    card: int
    chip: int
    pid: int
    name: str


@dataclass(frozen=True, kw_only=True)
class NpuReport:
    """What npu-smi said; `version` is the driver's."""

    version: str
    chips: tuple[Chip, ...]
    processes: tuple[CardProcess, ...]


def parse_npu_smi(text: str) -> NpuReport:
    """Read the output of `npu-smi info`; InfrastructureError when it is not that table."""
    version = VERSION.search(text)
    if version is None:
        raise InfrastructureError(
            "npu-smi printed something that is not its table",
            why=f"no version line in: {_excerpt(text)}",
            fix="run `npu-smi info` by hand; a driver that is not loaded prints an error instead",
        )
    rows = [row for row in map(_cells, text.splitlines()) if row]
    return NpuReport(version=version.group(2), chips=_chips(rows), processes=_processes(rows))


def _cells(line: str) -> list[str]:
    stripped = line.strip()
    if not (stripped.startswith("|") and stripped.endswith("|") and len(stripped) > 1):
        return []
    return [cell.strip() for cell in stripped[1:-1].split("|")]


def _chips(rows: list[list[str]]) -> tuple[Chip, ...]:
    chips: list[Chip] = []
    head: tuple[int, str, str] | None = None
    for row in rows:
        if len(row) != 3:
            head = None
            continue
        card, chip = CARD.match(row[0]), CHIP.match(row[0])
        if head is not None and chip and BUS_ID.match(row[1]):
            usage = USAGE.search(row[2])
            chips.append(
                Chip(
                    card=head[0],
                    name=head[1],
                    health=head[2],
                    chip=int(chip.group(1)),
                    index=int(chip.group(2)) if chip.group(2) else len(chips),
                    bus_id=row[1],
                    hbm_used=int(usage.group(1)) if usage else 0,
                    hbm_total=int(usage.group(2)) if usage else 0,
                )
            )
            head = None
        elif card:
            head = (int(card.group(1)), card.group(2), row[1])
    return tuple(chips)


def _processes(rows: list[list[str]]) -> tuple[CardProcess, ...]:
    found: list[CardProcess] = []
    for row in rows:
        if len(row) != 4 or not row[1].isdigit():
            continue
        place = re.match(r"^(\d+)\s+(\d+)$", row[0])
        if place:
            found.append(
                CardProcess(card=int(place.group(1)), chip=int(place.group(2)), pid=int(row[1]), name=row[2])
            )
    return tuple(found)


def _excerpt(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return repr(first[:120]) if first else "no output"
