"""The hosts that a stand-in can be: their cards, and what their `npu-smi info` prints.

The tables have the layouts of npu-smi that `harness.devices.host.npu_smi` names. The sizes are those of
Atlas 800T A2 (8 cards), Atlas 800T A3 (8 cards of two dies) and Atlas 300I Duo (310P, two chips a card).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_WIDTHS = (27, 15, 52)


@dataclass(frozen=True, kw_only=True)
class HostShape:
    """A kind of host.

    soc: its family, as in the axis `soc`. name: what npu-smi calls a card. runtime_name: what the runtime
    calls a device. column: the head of npu-smi's column with device numbers, "" if its table has none.
    memory_mb: high-bandwidth memory of a device in MB.
    """

    soc: str
    title: str
    name: str
    runtime_name: str
    cards: int
    chips_per_card: int
    column: str
    memory_mb: int

    @property
    def devices(self) -> int:
        """How many devices the runtime counts."""
        return self.cards * self.chips_per_card


SHAPES = {
    shape.soc: shape
    for shape in (
        HostShape(
            soc="a2",
            title="Atlas 800T A2: 8 cards 910B3",
            name="910B3",
            runtime_name="Ascend910B3",
            cards=8,
            chips_per_card=1,
            column="",
            memory_mb=65536,
        ),
        HostShape(
            soc="a3",
            title="Atlas 800T A3: 8 cards of two dies, 16 devices",
            name="Ascend910",
            runtime_name="Ascend910_9391",
            cards=8,
            chips_per_card=2,
            column="Phy-ID",
            memory_mb=65536,
        ),
        HostShape(
            soc="310p",
            title="Atlas 300I Duo: 2 cards of two 310P3",
            name="310P3",
            runtime_name="Ascend310P3",
            cards=2,
            chips_per_card=2,
            column="Device",
            memory_mb=44280,
        ),
    )
}


def npu_smi_table(shape: HostShape, driver: str) -> str:
    """What `npu-smi info` prints on an idle host: the devices, and that no card has a process."""
    return "".join(f"{line}\n" for line in _lines(shape, driver))


def _lines(shape: HostShape, driver: str) -> Iterator[str]:
    rule, double = (f"+{'+'.join(mark * width for width in _WIDTHS)}+" for mark in "-=")
    yield f"+{'-' * (sum(_WIDTHS) + 2)}+"
    yield f"| npu-smi {driver:<24} Version: {driver:<{sum(_WIDTHS) - 32}}|"
    yield rule
    yield _row("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)")
    yield _row(f"Chip  {shape.column}".rstrip(), "Bus-Id", "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)")
    yield double
    for device in range(shape.devices):
        card, chip = divmod(device, shape.chips_per_card)
        number = f"{chip:<6}{device}" if shape.column else f"{chip}"
        yield _row(f"{card:<6}{shape.name}", "OK", "95.1        38                0    / 0")
        yield _row(
            number,
            f"0000:{device + 1:02X}:00.0",
            f"0           0    / 0          3332 / {shape.memory_mb}",
        )
        yield double if chip == shape.chips_per_card - 1 else rule
    yield rule
    yield "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"
    yield double
    for card in range(shape.cards):
        yield f"| {f'No running processes found in NPU {card}':<{sum(_WIDTHS) + 1}}|"
        yield double


def _row(*cells: str) -> str:
    return f"|{'|'.join(f' {cell:<{width - 1}}' for cell, width in zip(cells, _WIDTHS, strict=True))}|"
