"""Reads the metrics of training steps from the lines that verl prints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.verdict.triage.metric_forms import (
    MARKED,
    NUMERAL,
    OPENED,
    block_around,
    is_alone,
    other_forms,
    without_ansi,
)

_STEP = b"training/global_step"
_INDEX = re.compile(MARKED + rb"(?:np\.\w{1,12}\()?(\d{1,9})")
_TABLE_STEP = re.compile(rb"training/global_step[\s|:=\xe2\x94\x82\x83]{1,80}(?:np\.\w{1,12}\()?(\d{1,9})")
_VALUE = OPENED + rb"(" + NUMERAL + rb")"
_NUMBER = re.compile(MARKED + _VALUE)
#: After a name with a slash, which is no word of a text, a blank is enough.
_NUMBER_AFTER_BLANK = re.compile(rb"(?:" + MARKED + rb"|[ \t]{1,60})" + _VALUE)
_AFTER_PREFIX = re.compile(rb"[^\s\"':=]{1,200}" + MARKED + _VALUE)
# After one of these bytes, a name is only the end of a longer name: `critic/x` in `actor/critic/x`.
_NAME_BYTES = frozenset(
    bytes([byte]) for byte in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/"
)
#: All of the first steps are read. Of later steps, only every tenth and those with a validation are needed.
FIRST_STEPS = 50
EVERY = 10
_VALIDATION = b"val-core/"
#: What verl prints between two metrics. A line with it is no line of one metric.
_MORE = b" - "
# A step with a value that is not finite is always read.
# Each begins with a literal, which `re` finds fast.
_NOT_FINITE = (re.compile(rb"nan\b"), re.compile(rb"inf(?:inity)?\b"))
MOST_STEPS = 10_000
#: So many steps in descending order are no training that was started again.
FEWEST_STEPS = 3
MOST_LINES_OF_STEP = 100
#: The metrics of a step that are on other lines than its number are at most so far away.
NEAR_BYTES = 1 << 13


@dataclass(kw_only=True)
class MetricSeries:
    """The metrics of a run. values: metric -> step -> value. lines: step -> its first line in the log."""

    names: tuple[str, ...] = ()
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)
    _last: _StepText | None = None
    _passed: StepLine | None = None
    _part: bytes = b""
    _is_plain: bool = True
    _unnumbered: int = 0
    _more: dict[int, int] = field(default_factory=dict)

    @property
    def is_reversed(self) -> bool:
        """Whether the log shows its newest line first, as viewers of collected logs export them."""
        steps = sorted(self.lines, key=self.lines.__getitem__)
        return len(steps) >= FEWEST_STEPS and steps == sorted(steps, reverse=True)

    def read_block(self, data: bytes, start: int, end: int, line: int) -> None:
        """Read a line with `training/global_step`; if it is alone there, also the metrics around it.

        Of the lines of a step, the first finite values count.
        """
        found = _StepText(data, start, end, line)
        step = found.step
        if step is None or len(self.lines) >= 2 * MOST_STEPS:
            return
        self._look_at(data)
        self._passed = None
        if _is_needed(step, b"" if self._is_plain else found.near):
            self._add(step, found.metrics, line)
            self._last = None
        else:
            self._last = found

    def passes_over(self, line: StepLine) -> bool:
        """Whether a step is not needed: then this is all that is read of its line.

        What is not told here is for `read_block`.
        """
        found = _INDEX.match(line.data, line.position + len(_STEP))
        if found is None and not _TABLE_STEP.match(line.data, line.position, line.end):
            # The name without a number, which `read_block` can do nothing with.
            return True
        if found is None or len(self.lines) >= 2 * MOST_STEPS or _is_needed(int(found[1]), b""):
            return False
        if _MORE in line.data[found.end() : line.end]:
            # Its metrics are on this line.
            is_telling = _is_telling(line.data[line.start : line.end])
        else:
            self._look_at(line.data)
            is_telling = not self._is_plain
        if not is_telling:
            self._last, self._passed = None, line
        return not is_telling

    def _look_at(self, data: bytes) -> None:
        if data is not self._part:
            # One search of a part of the log spares one around each of its steps.
            self._part, self._is_plain = data, not _is_telling(data)

    def read_other_forms(self, data: bytes, line: int) -> None:
        """Read a part of a log without `training/global_step`. line: the number of its first line."""
        counted, lines = 0, 0
        is_telling = _is_telling(data)

        def is_wanted(step: int) -> bool:
            is_full = self._more.get(step, 0) >= MOST_LINES_OF_STEP
            return is_telling or (_is_needed(step, b"") and not is_full)

        for found in other_forms(data, is_wanted):
            self._unnumbered += not found.step
            step = found.step or self._unnumbered
            if found.step and not _is_needed(step, found.metrics):
                continue
            if found.position < counted:
                counted, lines = 0, 0
            lines += data.count(b"\n", counted, found.position)
            counted = found.position
            if step in self.lines:
                # The metrics of one step can stand on several lines, each with its number.
                self._more[step] = self._more.get(step, 0) + 1
                if self._more[step] < MOST_LINES_OF_STEP:
                    self._add_values(step, found.metrics)
            else:
                self._add(step, found.metrics, line + lines)

    def finish(self) -> None:
        """Read the last step, even if its number is not a multiple of `EVERY`."""
        if self._passed:
            self._last = self._passed.text
        if self._last:
            self._add(self._last.step or 0, self._last.metrics, self._last.line)

    def _add(self, step: int, raw: bytes, line: int) -> None:
        if step in self.lines:
            # A job that was started again numbers its steps again.
            self._add_not_finite(step, raw, line)
        elif len(self.lines) < MOST_STEPS * (2 if _has_not_finite(raw) else 1):
            self.lines[step] = line
            self._add_values(step, raw)

    def _add_values(self, step: int, raw: bytes) -> None:
        for name, value in metrics_on_line(without_ansi(raw), self.names).items():
            self.values.setdefault(name, {}).setdefault(step, value)

    def _add_not_finite(self, step: int, raw: bytes, line: int) -> None:
        """Values that are not finite count in every run of a log; of the other values, the first do."""
        if not _has_not_finite(raw):
            return
        for name, value in metrics_on_line(without_ansi(raw), self.names).items():
            known = self.values.setdefault(name, {})
            if not math.isfinite(value) and math.isfinite(known.get(step, 0.0)):
                known[step] = value
                self.lines[step] = line

    def first_of(self, names: Iterable[str]) -> tuple[str, dict[int, float]] | None:
        """The first of these metrics that has values, with its values ordered by step."""
        for name in names:
            if self.values.get(name):
                return name, dict(sorted(self.values[name].items()))
        return None


class _StepText(NamedTuple):
    """A line of a log with the number of a step: `data[start:end]`."""

    data: bytes
    start: int
    end: int
    line: int

    @property
    def raw(self) -> bytes:
        return self.data[self.start : self.end]

    @property
    def step(self) -> int | None:
        """The number; in a table it is in another column than the name."""
        step = step_of(self.raw)
        return _table_step(self.raw) if step is None else step

    @property
    def is_alone(self) -> bool:
        """Whether the metrics of the step are on other lines."""
        return self.step is not None and is_alone(self.raw)

    @property
    def near(self) -> bytes:
        """The text in which the metrics of the step are, and more."""
        if self.is_alone:
            return self.data[max(0, self.start - NEAR_BYTES) : self.end + NEAR_BYTES]
        return self.raw

    @property
    def metrics(self) -> bytes:
        """The metrics of the step as on one line."""
        return block_around(self.data, self.start, self.end) if self.is_alone else self.raw


class StepLine(NamedTuple):
    """A line of a part of a log, `data[start:end]`, with the number of a step at `position`.

    The place `counted` of the part is in the line with the number `line`.
    """

    data: bytes
    start: int
    end: int
    position: int
    counted: int
    line: int

    @property
    def text(self) -> _StepText:
        """The line with its number, which is counted only now."""
        number = self.line + self.data.count(b"\n", self.counted, self.start)
        return _StepText(self.data, self.start, self.end, number)


def _is_needed(step: int, text: bytes) -> bool:
    """Whether a step must be read: many steps of a long run say nothing that its other steps do not say."""
    return step <= FIRST_STEPS or step % EVERY == 0 or (bool(text) and _is_telling(text))


def _is_telling(text: bytes) -> bool:
    """Whether a text has the metrics of a validation, or values that are not finite."""
    return _VALIDATION in text or _has_not_finite(text)


def _has_not_finite(text: bytes) -> bool:
    lower = text.lower()
    return any(pattern.search(lower) for pattern in _NOT_FINITE)


def _table_step(raw: bytes) -> int | None:
    found = _TABLE_STEP.search(raw)
    return int(found[1]) if found else None


def step_of(raw: bytes) -> int | None:
    """The training step of a line, or None."""
    at = raw.find(_STEP)
    step = _INDEX.match(raw, at + len(_STEP)) if at >= 0 else None
    return int(step[1]) if step else None


def metrics_on_line(raw: bytes, names: Iterable[str]) -> dict[str, float]:
    """Metric -> value on a line. A name that ends in `/` is a prefix; the first metric with it counts."""
    values = ((name, _value(raw, name.encode(), is_prefix=name.endswith("/"))) for name in names)
    return {name: value for name, value in values if value is not None}


def _value(raw: bytes, name: bytes, *, is_prefix: bool) -> float | None:
    at = raw.find(name)
    while at >= 0:
        end = at + len(name)
        if not at or raw[at - 1 : at] not in _NAME_BYTES:
            pattern = _AFTER_PREFIX if is_prefix else _NUMBER_AFTER_BLANK if b"/" in name else _NUMBER
            match = pattern.match(raw, end)
            if match:
                return float(match[1])
        at = raw.find(name, end)
    return None
