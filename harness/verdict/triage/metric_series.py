"""Reads the metrics of training steps from the lines that verl prints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

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
# A step with a value that is not finite is always read.
_NOT_FINITE = re.compile(rb"(?:[nN]a[nN]|NAN|[iI]nf(?:inity)?|INF)\b")
MOST_STEPS = 10_000
MOST_LINES_OF_STEP = 100


@dataclass(kw_only=True)
class MetricSeries:
    """The metrics of a run. values: metric -> step -> value. lines: step -> its first line in the log."""

    names: tuple[str, ...] = ()
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)
    _last: tuple[bytes, int] | None = None
    _unnumbered: int = 0
    _more: dict[int, int] = field(default_factory=dict)

    def read_line(self, raw: bytes, line: int) -> None:
        """Read a line with `training/global_step`. Of the lines of a step, the first finite values count."""
        step = step_of(raw)
        if step is None:
            return
        if step <= FIRST_STEPS or step % EVERY == 0 or _VALIDATION in raw or _NOT_FINITE.search(raw):
            self._add(step, raw, line)
            self._last = None
        else:
            self._last = (raw, line)

    def read_block(self, data: bytes, start: int, end: int, line: int) -> None:
        """Read a line with `training/global_step`; if it is alone there, also the metrics around it."""
        raw = data[start:end]
        step = step_of(raw)
        if step is None:
            # In a table, the number is in another column.
            step = _table_step(raw)
        if step is not None and is_alone(raw):
            self._add(step, block_around(data, start, end), line)
        else:
            self.read_line(raw, line)

    def read_other_forms(self, data: bytes, line: int) -> None:
        """Read a part of a log without `training/global_step`. line: the number of its first line."""
        for found in other_forms(data):
            self._unnumbered += not found.step
            step = found.step or self._unnumbered
            if step in self.lines:
                # The metrics of one step can stand on several lines, each with its number.
                self._more[step] = self._more.get(step, 0) + 1
                if self._more[step] < MOST_LINES_OF_STEP:
                    self._add_values(step, found.metrics)
            else:
                self._add(step, found.metrics, line + data.count(b"\n", 0, found.position))

    def finish(self) -> None:
        """Read the last step, even if its number is not a multiple of `EVERY`."""
        if self._last:
            raw, line = self._last
            self._add(step_of(raw) or 0, raw, line)

    def _add(self, step: int, raw: bytes, line: int) -> None:
        if step in self.lines:
            # A job that was started again numbers its steps again.
            self._add_not_finite(step, raw, line)
        elif len(self.lines) < MOST_STEPS:
            self.lines[step] = line
            self._add_values(step, raw)

    def _add_values(self, step: int, raw: bytes) -> None:
        for name, value in metrics_on_line(without_ansi(raw), self.names).items():
            self.values.setdefault(name, {}).setdefault(step, value)

    def _add_not_finite(self, step: int, raw: bytes, line: int) -> None:
        """Values that are not finite count in every run of a log; of the other values, the first do."""
        if not _NOT_FINITE.search(raw):
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
