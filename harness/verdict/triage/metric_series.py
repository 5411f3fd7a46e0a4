"""The metrics of training steps, read out of the lines verl prints them in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_STEP = b"training/global_step"
_INDEX = re.compile(rb"[\"']?\s*:\s*(?:np\.\w{1,12}\()?(\d{1,9})")
# A number as Python, numpy 2 or JSON writes it.
_DIGITS = rb"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_VALUE = rb"[\"']?\s*:\s*(?:np\.\w{1,12}\(|tensor\()?([-+]?(?:" + _DIGITS + rb"|nan|inf|NaN|Infinity))"
_NUMBER = re.compile(_VALUE)
_BEGUN = re.compile(rb"[^\s\"':]{1,200}" + _VALUE)
# What may stand before a name that is not the end of a longer one: `critic/x` is not `actor/critic/x`.
_WITHIN = frozenset(
    bytes([byte]) for byte in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/"
)
#: Rules look at the first steps one by one; of later ones every tenth and each with a validation will do.
FIRST_STEPS = 32
EVERY = 10
_VALIDATION = b"val-core/"
MOST_STEPS = 10_000


@dataclass(kw_only=True)
class MetricSeries:
    """Metric -> values by step; `lines`: step -> the line that showed it first."""

    names: tuple[str, ...] = ()
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)
    _last: tuple[bytes, int] | None = None

    def take(self, raw: bytes, line: int) -> None:
        """Read a line with `training/global_step`; of several lines on a step the first counts."""
        step = step_of(raw)
        if step is None:
            return
        if step <= FIRST_STEPS or step % EVERY == 0 or _VALIDATION in raw:
            self._add(step, raw, line)
            self._last = None
        else:
            self._last = (raw, line)

    def finish(self) -> None:
        """Read the last step too, whichever it is."""
        if self._last:
            raw, line = self._last
            self._add(step_of(raw) or 0, raw, line)

    def _add(self, step: int, raw: bytes, line: int) -> None:
        if step in self.lines or len(self.lines) >= MOST_STEPS:
            return
        self.lines[step] = line
        for name, value in metrics_on_line(raw, self.names).items():
            self.values.setdefault(name, {})[step] = value

    def first_of(self, names: Iterable[str]) -> tuple[str, dict[int, float]] | None:
        """The first of the metrics that is there, with its values by step, in order of steps."""
        for name in names:
            if self.values.get(name):
                return name, dict(sorted(self.values[name].items()))
        return None


def step_of(raw: bytes) -> int | None:
    """The training step of a line, or None."""
    at = raw.find(_STEP)
    step = _INDEX.match(raw, at + len(_STEP)) if at >= 0 else None
    return int(step[1]) if step else None


def metrics_on_line(raw: bytes, names: Iterable[str]) -> dict[str, float]:
    """Metric -> value on a line; a name that ends in `/` stands for the first metric that begins so."""
    values = ((name, _value(raw, name.encode(), name.endswith("/"))) for name in names)
    return {name: value for name, value in values if value is not None}


def _value(raw: bytes, name: bytes, beginning: bool) -> float | None:
    at = raw.find(name)
    while at >= 0:
        end = at + len(name)
        if not at or raw[at - 1 : at] not in _WITHIN:
            match = (_BEGUN if beginning else _NUMBER).match(raw, end)
            if match:
                return float(match[1])
        at = raw.find(name, end)
    return None
