"""Parser of the table that `npu-smi info` prints.

The layouts come from the published source of npu-smi (`print_total_info*` of the driver) and from tables in
public reports of versions 23.0.rc3 to 26.0.rc2. Each chip has two lines; the first one describes its card. If
the second line begins with two numbers, the second number is the device number (`Phy-ID` of A3, `Device` of
310 and 310P). A2 and 910 cards have no such column, and their card number is the device number. Since 25.7,
950 cards have a separate column for the card number, and no chip numbers. Column widths differ between
generations, so lines are split at the bars and never by position. A process table follows, with a section for
each card. If npu-smi cannot read the details of a card, only the card's first line is printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import InfrastructureError

VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*([^\s|]+)")
#: A name has a letter, and is not the empty device number (`NA`) of a chip's line.
CARD = re.compile(r"^(\d{1,9})\s+(?!(?:NA|N/A)$)(?=\S*[A-Za-z])(\S+)$")
CHIP = re.compile(r"^(\d{1,9})(?:\s+(?:(\d{1,9})|NA|N/A|-))?$")
BUS_ID = re.compile(r"^(?:[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]{1,4}|NA|N/A)$")
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True, kw_only=True)
class KnownError:
    """What npu-smi prints instead of its table. cards_may_work: only npu-smi fails, programs may run."""

    text: str
    what: str
    fix: str
    cards_may_work: bool = False


#: Sources: `handle_dcmi_initialization`, `handle_board_type_initialization` and `print_mapping_info` of
#: npu-smi, the documentation of MindCluster, and vllm-project/vllm-ascend#2698 for -8005 in a container.
KNOWN_ERRORS = (
    KnownError(
        text=r"because the device is used\. ret is -8020",
        what="other containers use these cards",
        fix="a card can be in one unprivileged container at a time: stop the other ones, or pass other cards",
    ),
    KnownError(
        text=r"dcmi module initialize failed\. ret is -8005",
        what="the driver is not running, or other containers use these cards",
        fix="reboot after a driver update; in a container, pass the manager nodes, and free cards",
    ),
    KnownError(
        text=r"dcmi module initialize failed",
        what="the driver cannot be reached",
        fix="check `dmesg` and /var/log/ascend_seclog; firmware and driver must be of the same release",
    ),
    KnownError(
        text=r"npu get board type failed\. ret is -\d+",
        what="npu-smi may not read the boards, so the health of the cards is not known",
        fix="this is usual in a container; run `npu-smi info` on the host to see their health",
        cards_may_work=True,
    ),
    KnownError(
        text=r"There is no NPU card on this server",
        what="the driver finds no card",
        fix="check whether `lspci | grep -i processing` lists the cards; if so, reload the driver",
    ),
    KnownError(
        text=r"error while loading shared libraries: (\S+?):?\s",
        what="npu-smi cannot load a library of the driver",
        fix="add the folders in driver/lib64 to LD_LIBRARY_PATH, or mount the driver into this container",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One chip, which is one device of the runtime. index: its davinci number."""

    card: int
    chip: int
    index: int
    name: str
    health: str

    @property
    def healthy(self) -> bool:
        """Whether npu-smi reports OK, not Warning, Alarm, Critical or UNKNOWN."""
        return self.health.upper() == "OK"


@dataclass(frozen=True, kw_only=True)
class CardProcess:
    """A process that uses memory of a chip."""

    card: int
    chip: int
    pid: int
    name: str


@dataclass(frozen=True, kw_only=True)
class NpuReport:
    """The parsed table.

    version: of the driver. silent: cards that are listed without details, because the driver lost them or the
    table is cut off. Where the table has no device numbers, `Chip.index` is the card number.
    """

    version: str
    chips: tuple[Chip, ...]
    processes: tuple[CardProcess, ...]
    silent: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _CardLine:
    card: int
    name: str
    health: str


def parse_npu_smi(text: str) -> NpuReport:
    """Parse the output of `npu-smi info`; InfrastructureError when it is not a table."""
    text = ESCAPES.sub("", text)
    version = VERSION.search(text)
    if version is None:
        raise _no_table(text)
    rows = [row for row in map(_cells, text.splitlines()) if row]
    chips, silent = _chips(rows)
    return NpuReport(
        version=version.group(2),
        chips=chips,
        processes=_processes(rows),
        silent=silent,
    )


def _no_table(text: str) -> InfrastructureError:
    known = _known_error(text)
    if known is not None:
        error, start = known
        why = f"npu-smi printed: {_line_of(text, start)}"
        return InfrastructureError(error.what, why=why, fix=error.fix)
    return InfrastructureError(
        "npu-smi printed no table",
        why=f"no line with a version in: {_excerpt(text)}",
        fix="run `npu-smi info` by hand; it prints an error if the driver is not loaded",
    )


def cards_may_work(text: str) -> bool:
    """Whether programs may still use the cards of a host where npu-smi printed this instead of a table."""
    known = _known_error(ESCAPES.sub("", text))
    return known is not None and known[0].cards_may_work


def _known_error(text: str) -> tuple[KnownError, int] | None:
    """The first known error that a text without escapes has, and its position."""
    found = ((one, re.search(one.text, text)) for one in KNOWN_ERRORS)
    return next(((one, match.start()) for one, match in found if match), None)


def _cells(line: str) -> list[str]:
    stripped = line.strip()
    if not (stripped.startswith("|") and stripped.endswith("|") and len(stripped) > 1):
        return []
    return [cell.strip() for cell in stripped[1:-1].split("|")]


def _chips(rows: Sequence[Sequence[str]]) -> tuple[tuple[Chip, ...], tuple[int, ...]]:
    """The chips, and the cards without details."""
    chips: list[Chip] = []
    silent: list[int] = []
    head: _CardLine | None = None
    for row in rows:
        next_head = _head(row)
        numbers = None if head is None else _chip_numbers(row)
        if head is not None and numbers is not None:
            chip, device = numbers
            index = head.card if device is None else device
            chips.append(Chip(card=head.card, chip=chip, index=index, name=head.name, health=head.health))
            head = None
        elif next_head is not None or head is not None:
            silent += [head.card] if head else []
            head = next_head
    silent += [head.card] if head else []
    return tuple(chips), tuple(dict.fromkeys(silent))


def _head(row: Sequence[str]) -> _CardLine | None:
    """A card's first line: `0 910B3 | OK | ...`, or `0 | Ascend950PR | OK | ...`."""
    if len(row) == 3 and (card := CARD.match(row[0])):
        return _CardLine(card=int(card.group(1)), name=card.group(2), health=row[1])
    # The second column of the process table is a number, so it is no name of a card.
    if len(row) == 4 and re.fullmatch(r"\d{1,9}", row[0]) and re.fullmatch(r"[A-Za-z]\S*", row[1]):
        return _CardLine(card=int(row[0]), name=row[1], health=row[2])
    return None


def _chip_numbers(row: Sequence[str]) -> tuple[int, int | None] | None:
    """Chip and device number in a card's second line: `0 [5] | 0000:C1:00.0 | ...`, or ` | | bus | ...`."""
    if len(row) == 3 and BUS_ID.match(row[1]) and (chip := CHIP.match(row[0])):
        return int(chip.group(1)), int(chip.group(2)) if chip.group(2) else None
    if len(row) == 4 and not row[0] and not row[1] and BUS_ID.match(row[2]):
        return 0, None
    return None


def _processes(rows: Sequence[Sequence[str]]) -> tuple[CardProcess, ...]:
    """Rows `card chip | pid | name | MiB`. 950 tables have no chip; some also have the container's pid."""
    processes: list[CardProcess] = []
    for row in rows:
        numbers = CHIP.match(row[0])
        if len(row) in {4, 5} and numbers and re.fullmatch(r"\d{1,9}", row[1]):
            card, chip = int(numbers.group(1)), int(numbers.group(2) or 0)
            processes.append(CardProcess(card=card, chip=chip, pid=int(row[1]), name=row[2]))
    return tuple(processes)


def _excerpt(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return repr(first[:120]) if first else "no output"


def _line_of(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    return text[start:].split("\n", 1)[0].strip()[:200]
