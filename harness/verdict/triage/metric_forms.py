"""Finds the metrics of training steps in other forms than one line of verl's console, such as tables.

Each form is turned into the line that verl's console logger would have printed: `step:3 - actor/entropy:0.5`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

NUMBER = rb"(?:np\.\w{1,12}\(|tensor\()?[-+]?(?:\d|\.\d|nan|inf|NaN|Infinity)[^\s|,}\xe2]{0,40}"
#: If a part of a log has none of these, it has no metrics in a form that is read here.
_MARKS = (b"actor/", b"grad_norm", b"grad norm", b"train/loss")
_EDGE = rb"(?:\x1b\[[\d;]{0,9}m|\([^)\n]{1,90}\) ?|[\s|\xe2\x94\x82\x83])*"
_BETWEEN = rb"[\s|:=\xe2\x94\x82\x83]"
_PAIR = re.compile(
    _EDGE
    + rb"(?P<name>[A-Za-z_][\w./@-]{0,120})[\"']?"
    + _BETWEEN
    + rb"{1,80}(?P<value>"
    + NUMBER
    + rb")[\s|\xe2\x94\x82\x83]*$"
)
# Frames of tables: +----+, |----|, the box-drawing characters of rich, and the heads of columns.
_FRAME = re.compile(
    _EDGE
    + rb"(?:(?:[-+=_|:\s]|\xe2[\x94\x95][\x80-\xbf])+|[Mm]etric\w*"
    + _BETWEEN
    + rb"+[Vv]alue\w*.{0,20})$"
)
_STEP_ALONE = re.compile(rb"(?:^|[\s\]:(|])[Ss]tep\s{0,2}[:=#]?\s{0,2}(\d{1,9})\s*:?\s*\r?$")
_STEP_LINE = re.compile(rb"\bstep:(\d{1,9}) - [^\n]+")
_JSON_LINE = re.compile(rb"\"(?:global_)?step\":\s{0,4}(\d{1,9})\b[^\n]*")
_TRAINER_LINE = re.compile(rb"\{'(?:loss|grad_norm|train_loss)': [^\n}]{1,2000}\}")
_MEGATRON_LINE = re.compile(rb"\biteration\s+(\d{1,9})/\s*\d{1,9} \|[^\n]{1,2000}")
_MEGATRON_PAIR = re.compile(rb"(?P<name>lm loss|grad norm): *(?P<value>" + NUMBER + rb")")
MOST_LINES = 600
_STEP = b"training/global_step"


class FoundStep(NamedTuple):
    """A step in another form: its number (0 if unknown), its metrics as a console line, its position."""

    step: int
    metrics: bytes
    position: int


def is_alone(raw: bytes) -> bool:
    """Whether a line has one metric only, so that those of its step are on the lines around it."""
    return _PAIR.match(raw.rstrip(b"\r\n")) is not None


def block_around(data: bytes, start: int, end: int) -> bytes:
    """The metrics on the lines around the line `data[start:end]`, each of which has one metric."""
    own = _PAIR.match(data[start:end].rstrip(b"\r\n"))
    before = _pairs(_lines_before(data, start), set())
    names = {pair.partition(b":")[0] for pair in before}
    after = _pairs(_lines_after(data, end), names)
    # The nearest line comes first: if a name occurs twice, the first value counts.
    return b" - ".join([*([_joined(own)] if own else []), *before, *after])


def other_forms(data: bytes) -> Iterator[FoundStep]:
    """The steps of a part of a log without `training/global_step`."""
    if not any(mark in data for mark in _MARKS):
        return
    for pattern in (_STEP_LINE, _JSON_LINE):
        for found in pattern.finditer(data):
            yield FoundStep(int(found[1]), found[0], found.start())
    for found in _TRAINER_LINE.finditer(data):
        yield FoundStep(0, found[0], found.start())
    for found in _MEGATRON_LINE.finditer(data):
        pairs = (
            pair["name"].replace(b" ", b"_") + b":" + pair["value"]
            for pair in _MEGATRON_PAIR.finditer(found[0])
        )
        yield FoundStep(int(found[1]), b" - ".join(pairs), found.start())
    yield from _headed_blocks(data)


def _headed_blocks(data: bytes) -> Iterator[FoundStep]:
    """Blocks of lines with one metric each, after a line with the number of the step."""
    at = data.find(b"tep")
    while at >= 0:
        start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        end = len(data) if end < 0 else end
        head = _STEP_ALONE.search(data[start:end])
        if head:
            pairs = _pairs(_lines_after(data, end), set())
            if pairs:
                yield FoundStep(int(head[1]), b" - ".join(pairs), start)
        at = data.find(b"tep", end)


def _pairs(lines: Iterator[bytes], known: set[bytes]) -> list[bytes]:
    """The metrics of lines up to the next step: its head, its number, or a name that is already known."""
    pairs: list[bytes] = []
    for line in lines:
        found = _PAIR.match(line)
        if _STEP_ALONE.search(line) or (found and (found["name"] in known or found["name"] == _STEP)):
            break
        if found:
            pairs.append(_joined(found))
            known.add(found["name"])
        elif line.strip() and not _FRAME.match(line):
            break
    return pairs


def _joined(found: re.Match[bytes]) -> bytes:
    return found["name"] + b":" + found["value"]


def _lines_after(data: bytes, end: int) -> Iterator[bytes]:
    for _ in range(MOST_LINES):
        start = end + 1
        if start >= len(data):
            return
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        yield data[start:end].rstrip(b"\r")


def _lines_before(data: bytes, start: int) -> Iterator[bytes]:
    for _ in range(MOST_LINES):
        if start <= 0:
            return
        end = start - 1
        start = data.rfind(b"\n", 0, end) + 1
        yield data[start:end].rstrip(b"\r")
