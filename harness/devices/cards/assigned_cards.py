"""The cards that are assigned to this job, as the variables of its environment name them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

#: What CANN's runtime reads: positions among the cards that it can see, separated by commas. It ignores what
#: follows a position that no card has.
RUNTIME_VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
#: What Ascend Docker Runtime and the device plugin of MindCluster read and set: numbers of cards on the host,
#: as `0,2`, `0-2,4`, `npu-1` or `Ascend910-1,Ascend910-3`. A privileged container sees the other cards too.
#: Source: "Usage on the Docker client" in the documentation of MindCluster.
CONTAINER_VARIABLE = "ASCEND_VISIBLE_DEVICES"
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_NAMED = re.compile(r"[A-Za-z]\w*-(\d{1,6})")


@dataclass(frozen=True, kw_only=True)
class AssignedCards:
    """davinci numbers of the cards of this job, and the settings that say so, such as `VARIABLE=0,1`."""

    cards: tuple[int, ...]
    by: str


def assigned_cards(environ: Mapping[str, str], nodes: Sequence[int]) -> AssignedCards | None:
    """The cards among `nodes` that are assigned to this job; None if no variable restricts them.

    nodes: davinci numbers of the device nodes, in ascending order. A container's variable that names none of
    them is ignored: its numbers are then those of another machine.
    """
    cards, settings = list(nodes), []
    named = [card for card in _numbers(environ.get(CONTAINER_VARIABLE, "")) if card in nodes]
    if named and len(named) < len(nodes):
        cards = [card for card in cards if card in named]
        settings.append(CONTAINER_VARIABLE)
    if nodes and environ.get(RUNTIME_VARIABLE, "").strip():
        positions = list(_positions(environ[RUNTIME_VARIABLE], len(nodes)))
        cards = [nodes[position] for position in positions if nodes[position] in cards]
        settings.append(RUNTIME_VARIABLE)
    if not settings or tuple(cards) == tuple(nodes):
        return None
    return AssignedCards(
        cards=tuple(cards), by=" and ".join(f"{name}={environ[name].strip()}" for name in settings)
    )


def _positions(text: str, number: int) -> Iterator[int]:
    for part in text.split(","):
        word = part.strip()
        if not (word.isascii() and word.isdecimal()) or int(word) >= number:
            return
        yield int(word)


def _numbers(text: str) -> Iterator[int]:
    """The numbers of cards in the container's variable; `void`, "" and what cannot be read name none."""
    for part in text.split(","):
        word = part.strip()
        if named := _NAMED.fullmatch(word):
            yield int(named.group(1))
        elif found := _RANGE.fullmatch(word):
            first, last = int(found.group(1)), int(found.group(2) or found.group(1))
            yield from range(first, min(last, first + 1024) + 1)
