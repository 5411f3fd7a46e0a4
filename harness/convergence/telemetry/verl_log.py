"""Reads the console log and the `file` logger of verl's trainer as telemetry, also while they are written.

Console (verl/utils/logger/aggregate_logger.py): `step:3 - actor/entropy:0.5 -
critic/rewards/mean:np.float64(0.2)` after Ray's prefix `(TaskRunner pid=7)`; numpy 2 prints scalars as
`np.float64(...)`. Ray forwards the output of a process in pieces, so a long line can be split into two lines,
each with the prefix. File logger (verl/utils/tracking.py): `{"step": 3, "data": {...}}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.convergence.telemetry.series import RunBuilder, Telemetry
from harness.convergence.telemetry.verl_metrics import FIRST_STEP, metric_problems, values_of

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"^(?:\((?P<source>[^)]*)\) ?)?(?P<text>.*)$")
_CONSOLE = re.compile(r"^\s*step:(?P<step>\d+) - (?P<metrics>.*)$")
_PAIR = re.compile(
    r"^\S+:(?:[-+]?(?:\.?\d|inf|nan)[\w.+-]*|True|False|None|(?:np|numpy|tensor)[\w.]*\(\S*\))$"
)
# The rest of a value that was split, followed by another metric.
_REST_OF_VALUE = re.compile(r"^[\w.+)-]* - ")


@dataclass(frozen=True)
class _OpenStep:
    """The line of a step, whose rest may follow in another line.

    earlier, problems: the values of the step and the number of problems before this line was added.
    """

    step: int
    metrics: str
    where: str
    earlier: dict[str, float] | None
    problems: int

    def joined(self, text: str) -> str:
        """The metrics with `text` appended, or "" if `text` is not the rest of this line."""
        whole = self.metrics + text
        ends_in_value = all(_PAIR.match(pair) for pair in self.metrics.split(" - "))
        if ends_in_value and not _REST_OF_VALUE.match(text):
            return ""
        return whole if all(_PAIR.match(pair) for pair in whole.split(" - ")) else ""


class VerlLog:
    """Reads a growing log: pass its text to `feed`, and call `telemetry` at any time.

    steps: planned training steps. The run is complete when the last of them was logged.
    """

    def __init__(self, name: str, *, steps: int | None = None) -> None:
        self.name = name
        self.steps = steps
        self._runs: dict[str, RunBuilder] = {}
        self._problems: list[str] = []
        self._open: dict[str, _OpenStep] = {}
        self._rest = ""
        self._line = 0

    def feed(self, text: str) -> None:
        """Read the next piece of the log, which may end within a line."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._line += 1
            self._read_line(_COLOUR.sub("", line).rstrip("\r"))

    def telemetry(self) -> Telemetry:
        """The runs so far, one for each process that logged steps, and the problems."""
        problems = list(self._problems)
        if self._rest.strip():
            problems.append(
                f"{self.name}:{self._line + 1}: the log ends within a line: {self._rest.strip()[:60]!r}"
            )
        if len(self._runs) > 1:
            problems.append(
                f"{self.name} contains steps of several processes: {', '.join(map(repr, self._runs))}"
            )
        if not self._runs:
            problems.append(f"{self.name} contains no training step")
        for run in self._runs.values():
            run.ended = self.steps is not None and max(run.steps, default=0) >= self.steps
        runs = tuple(run.build() for run in self._runs.values())
        problems += [problem for run in runs for problem in metric_problems(run, self.steps)]
        return Telemetry(runs=runs, problems=tuple(problems))

    def _read_line(self, line: str) -> None:
        where = f"{self.name}:{self._line}"
        if line.lstrip().startswith("{"):
            record = _json(line)
            if record is None:
                self._problems.append(f"{where}: not a step of verl's file logger: {line.strip()[:60]!r}")
            else:
                self._add("", int(record["step"]), record["data"], where)
            return
        split = _LINE.match(line.lstrip())
        source, text = (split["source"] or "", split["text"]) if split else ("", line)
        found, before = _CONSOLE.match(text), self._open.pop(source, None)
        if found:
            self._add_step(source, int(found["step"]), found["metrics"], where)
        elif before is not None and (whole := before.joined(text)):
            self._undo(source, before)
            self._add_step(source, before.step, whole, before.where)

    def _add_step(self, source: str, step: int, metrics: str, where: str) -> None:
        run = self._runs.get(source)
        self._open[source] = _OpenStep(
            step=step,
            metrics=metrics,
            where=where,
            earlier=run.steps.get(step) if run else None,
            problems=len(run.problems) if run else 0,
        )
        pairs = [pair.rpartition(":") for pair in metrics.split(" - ")]
        self._add(source, step, {key: text for key, _, text in pairs}, where)

    def _undo(self, source: str, added: _OpenStep) -> None:
        run = self._runs.get(source)
        if run is None:
            return
        del run.problems[added.problems :]
        run.steps.pop(added.step, None)
        if added.earlier is not None:
            run.steps[added.step] = added.earlier

    def _add(self, source: str, step: int, logged: Mapping[str, Any], where: str) -> None:
        values = values_of(logged)
        if not values:
            return  # a validation line, or step 0
        builder = self._runs.setdefault(source, RunBuilder({"source": source or self.name}, first=FIRST_STEP))
        builder.add({"step": step, **values}, where)


def _json(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    good = (
        isinstance(record, dict)
        and isinstance(record.get("step"), int)
        and isinstance(record.get("data"), dict)
    )
    return record if good else None
