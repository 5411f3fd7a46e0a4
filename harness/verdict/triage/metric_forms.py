"""Finds the metrics of training steps in other forms than one line of verl's console, such as tables.

Each form is turned into the line that verl's console logger would have printed: `step:3 - actor/entropy:0.5`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from harness.verdict.triage.log_line import PREFIX_OF_BYTES
from harness.verdict.triage.log_record import read_record

#: A number as Python, numpy 2, torch or JSON writes it, without what is around it.
NUMERAL = (
    rb"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[nN][aA][nN]|[iI]nf(?:inity)?|INF(?:INITY)?)(?![A-Za-z_])"
)
#: What stands before a number.
OPENED = rb"(?:np\.\w{1,12}\(|tensor\(|[\"'])?"
#: Colon, equals sign, frames of tables, and the colon of Chinese text; blanks around them.
MARKED = rb"[\"'\]]?[ \t]{0,60}(?:[:=|]|\xef\xbc\x9a|\xe2\x94[\x82\x83])[ \t]{0,60}"
_NUMBER = OPENED + NUMERAL
#: If a part of a log has none of these, it has no metrics in a form that is read here.
_MARKS = (b"actor/", b"critic/", b"grad_norm", b"grad norm", b"train/loss", b"rollout_probs_diff")
_MARK = re.compile(b"|".join(map(re.escape, _MARKS)))
_ANSI = re.compile(rb"\x1b\[[\d;]{0,20}m")
_EDGE = rb"(?:" + PREFIX_OF_BYTES + rb"|\([^)\n]{1,90}\) ?|wandb: |[\s|\"'{\xe2\x94\x82\x83])*"
_BETWEEN = rb"[\s|:=\xe2\x94\x82\x83]"
_CLOSED = rb"[)\"']{0,2}(?:, device=[^)\n]{1,40}\))?[\s|,}\xe2\x94\x82\x83]*$"
_PAIR = re.compile(
    _EDGE
    + rb"(?P<name>[A-Za-z_][\w./@-]{0,120})[\"']?"
    + _BETWEEN
    + rb"{1,80}(?P<value>"
    + _NUMBER
    + rb")"
    + _CLOSED
)
# Frames of tables: +----+, |----|, the box-drawing characters of rich, and the heads of columns.
_FRAME = re.compile(
    _EDGE
    + rb"(?:(?:[-+=_|:\s]|\xe2[\x94\x95][\x80-\xbf])+|[Mm]etric\w*"
    + _BETWEEN
    + rb"+[Vv]alue\w*.{0,20})$"
)
# step, _step, global_step, iteration, and in Chinese; not the end of another name such as `timing_s/step`.
_STEP_WORD = (
    rb"(?:^|[^\w/])(?:_|[Gg]lobal[_ ]?)?"
    rb"(?:[Ss]tep|STEP|[Ii]teration|\xe6\xad\xa5\xe9\xaa\xa4|\xe6\xad\xa5\xe6\x95\xb0|\xe7\xac\xac)"
)
_STEP_ALONE = re.compile(_STEP_WORD + rb"[\"']?\s{0,2}[:=#]?\s{0,2}(\d{1,9})\s*[:,]?\s*$")
_STEP_ON_LINE = re.compile(
    _STEP_WORD + rb"(?:[\"'\]]?[ \t]{0,8}(?:[:=#(]|\xef\xbc\x9a)?[ \t]{0,8})(\d{1,9})(?![.\d])"
    # The bar of tqdm.
    rb"|\b(\d{1,9})/\d{1,9} \["
)
_STEP_CELLS = frozenset({b"step", b"_step", b"global_step", b"training/global_step", b"iteration"})
#: Part of each of these.
_STEP_CELL = re.compile(rb"step|iteration")
_END = re.compile(rb"[\r\n]")
_BOX = re.compile(rb"\xe2\x94[\x82\x83]")
_SUMMARY = b"Run summary:"
_TRAINER_LINE = re.compile(rb"\{'(?:loss|grad_norm|train_loss)': [^\n}]{1,2000}\}")
_MEGATRON_LINE = re.compile(rb"\biteration\s+(\d{1,9})/\s*\d{1,9} \|[^\n]{1,2000}")
_MEGATRON_PAIR = re.compile(rb"(?P<name>lm loss|grad norm): *(?P<value>" + _NUMBER + rb")")
MOST_LINES = 600
#: So many lines of other processes may stand between two metrics of a step.
MOST_BETWEEN = 3
#: A line that is only the number of a step ends with at most so many bytes that say so.
LONGEST_HEAD = 120
MOST_ROWS = 10_000
_STEP = b"training/global_step"


class FoundStep(NamedTuple):
    """A step in another form: its number (0 if unknown), its metrics as a console line, its position."""

    step: int
    metrics: bytes
    position: int


def without_ansi(data: bytes) -> bytes:
    """Without the codes for colours."""
    return _ANSI.sub(b"", data) if b"\x1b" in data else data


def is_alone(raw: bytes) -> bool:
    """Whether a line has one metric only, so that those of its step are on the lines around it."""
    return _PAIR.match(_content(raw)) is not None


def _content(raw: bytes) -> bytes:
    """A line without colours, or the text of the record that a collector of logs made of it."""
    line = without_ansi(raw.rstrip(b"\r\n"))
    record = read_record(line.decode("utf-8", "replace")) if line.startswith(b'{"') else None
    return record.text.encode() if record else line


def block_around(data: bytes, start: int, end: int) -> bytes:
    """The metrics on the lines around the line `data[start:end]`, each of which has one metric."""
    own = _PAIR.match(_content(data[start:end]))
    before = _pairs(_lines_before(data, start), set())
    names = {pair.partition(b":")[0] for pair in before}
    after = _pairs(_lines_after(data, end), names)
    # The nearest line comes first: if a name occurs twice, the first value counts.
    return b" - ".join([*([_joined(own)] if own else []), *before, *after])


def other_forms(data: bytes, is_wanted: Callable[[int], bool] = lambda _step: True) -> Iterator[FoundStep]:
    """The steps of a part of a log without `training/global_step`.

    is_wanted: whether a step is of use; the metrics of another need not be put together.
    """
    if not any(mark in data for mark in _MARKS):
        return
    data = without_ansi(data)
    for found in _TRAINER_LINE.finditer(data):
        yield FoundStep(0, found[0], found.start())
    for found in _MEGATRON_LINE.finditer(data):
        pairs = (
            pair["name"].replace(b" ", b"_") + b":" + pair["value"]
            for pair in _MEGATRON_PAIR.finditer(found[0])
        )
        yield FoundStep(int(found[1]), b" - ".join(pairs), found.start())
    yield from _numbered_lines(data, is_wanted)
    yield from _headed_blocks(data, is_wanted)
    at = data.find(_SUMMARY)
    if at >= 0:
        yield FoundStep(0, b" - ".join(_pairs(_lines_after(data, data.find(b"\n", at)), set())), at)


def _numbered_lines(data: bytes, is_wanted: Callable[[int], bool]) -> Iterator[FoundStep]:
    """Lines with metrics and the number of their step in any order, and the rows of tables with a head."""
    at = 0
    while found := _MARK.search(data, at):
        # Bars of progress are drawn again on the same line.
        # What is before `at` was searched already, and what is behind the end of the line is searched later.
        before = max(data.rfind(b"\n", at, found.start()), data.rfind(b"\r", at, found.start()))
        start = before + 1 if before >= 0 else at
        end = _END.search(data, found.start())
        at = end.start() if end else len(data)
        line = data[start:at]
        step = _STEP_ON_LINE.search(line)
        if step:
            number = int(step[1] or step[2])
            if is_wanted(number):
                yield FoundStep(number, line, start)
        elif _STEP_CELL.search(line) and _STEP_CELLS & set(_cells(line)):
            yield from _rows(data, at, _cells(line))


def _rows(data: bytes, end: int, head: list[bytes]) -> Iterator[FoundStep]:
    """The rows of a table whose head has the names of metrics and of the step."""
    column = next(index for index, name in enumerate(head) if name in _STEP_CELLS)
    for line in _lines_after(data, end, MOST_ROWS):
        cells = _cells(line)
        if len(cells) == len(head) and cells[column].isdigit():
            pairs = (name + b":" + cell for name, cell in zip(head, cells, strict=True))
            yield FoundStep(int(cells[column]), b" - ".join(pairs), end)
        elif line.strip() and not _FRAME.match(line):
            return


def _cells(line: bytes) -> list[bytes]:
    """The cells of a row, however they are separated."""
    line = _BOX.sub(b"|", line)
    mark = next((mark for mark in (b"|", b"\t", b",") if mark in line), None)
    cells = line.strip(b" |\r").split(mark)
    return [cell.strip(b' "\t') for cell in cells]


def _headed_blocks(data: bytes, is_wanted: Callable[[int], bool]) -> Iterator[FoundStep]:
    """Blocks of lines with one metric each, after a line with the number of the step."""
    at = data.find(b"tep")
    while at >= 0:
        start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
        end = len(data) if end < 0 else end
        head = _STEP_ALONE.search(data[max(start, end - LONGEST_HEAD) : end])
        if head and is_wanted(int(head[1])):
            pairs = _pairs(_lines_after(data, end), set())
            if pairs:
                yield FoundStep(int(head[1]), b" - ".join(pairs), start)
        at = data.find(b"tep", end)


def _pairs(lines: Iterator[bytes], known: set[bytes]) -> list[bytes]:
    """The metrics of lines up to the next step: its head, its number, or a name that is already known."""
    pairs: list[bytes] = []
    others = 0
    for line in lines:
        found = _PAIR.match(line)
        if _STEP_ALONE.search(line) or (found and (found["name"] in known or found["name"] == _STEP)):
            break
        if found:
            pairs.append(_joined(found))
            known.add(found["name"])
            others = 0
        elif line.strip() and not _FRAME.match(line):
            others += 1
            if others > MOST_BETWEEN:
                break
    return pairs


def _joined(found: re.Match[bytes]) -> bytes:
    return found["name"] + b":" + found["value"]


def _lines_after(data: bytes, end: int, most: int = MOST_LINES) -> Iterator[bytes]:
    for _ in range(most):
        start = end + 1
        if start >= len(data):
            return
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        yield _content(data[start:end])


def _lines_before(data: bytes, start: int) -> Iterator[bytes]:
    for _ in range(MOST_LINES):
        if start <= 0:
            return
        end = start - 1
        start = data.rfind(b"\n", 0, end) + 1
        yield _content(data[start:end])
