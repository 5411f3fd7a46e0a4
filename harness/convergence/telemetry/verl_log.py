"""What verl's trainer logs, as telemetry: console lines and its `file` logger, read while they are being
written.

Console (verl/utils/logger/aggregate_logger.py): `step:3 - actor/entropy:0.5 -
critic/rewards/mean:np.float64(0.2)`, behind Ray's `(TaskRunner pid=7)`; numpy 2 prints scalars as
`np.float64(...)`. Ray hands on what a process has written so far, so a long line may come as two, each behind
`(TaskRunner pid=7)`. File logger (verl/utils/tracking.py): `{"step": 3, "data": {...}}`.
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
# The rest of a value that was cut in its middle, and the next metric.
_REST_OF_VALUE = re.compile(r"^[\w.+)-]* - ")


@dataclass(frozen=True)
class _OpenStep:
    """A step's line, of which more may come. earlier, problems: the step's values and the number of problems
    before it was taken."""

    step: int
    metrics: str
    where: str
    earlier: dict[str, float] | None
    problems: int

    def joined(self, text: str) -> str:
        """Its metrics with those of `text`, or "" where `text` is a line of its own."""
        whole = self.metrics + text
        ends_in_value = all(_PAIR.match(pair) for pair in self.metrics.split(" - "))
        if ends_in_value and not _REST_OF_VALUE.match(text):
            return ""
        return whole if all(_PAIR.match(pair) for pair in whole.split(" - ")) else ""


class VerlLog:
    """Reads a growing log: `feed` text as it arrives, ask for the `telemetry` so far at any time.

    steps: planned training steps; the run counts as complete when it has logged the last of them.
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
        """Take the next piece of the log, which may end in mid-line."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._line += 1
            self._take(_COLOUR.sub("", line).rstrip("\r"))

    def telemetry(self) -> Telemetry:
        """The runs so far, one per process that logged steps, and what was wrong."""
        problems = list(self._problems)
        if self._rest.strip():
            problems.append(
                f"{self.name}:{self._line + 1}: the log ends in mid-line: {self._rest.strip()[:60]!r}"
            )
        if len(self._runs) > 1:
            problems.append(f"{self.name} mixes the steps of {', '.join(map(repr, self._runs))}")
        if not self._runs:
            problems.append(f"{self.name} holds no training step")
        for run in self._runs.values():
            run.ended = self.steps is not None and max(run.steps, default=0) >= self.steps
        runs = tuple(run.build() for run in self._runs.values())
        problems += [problem for run in runs for problem in metric_problems(run, self.steps)]
        return Telemetry(runs=runs, problems=tuple(problems))

    def _take(self, line: str) -> None:
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
            self._take_step(source, int(found["step"]), found["metrics"], where)
        elif before is not None and (whole := before.joined(text)):
            self._undo(source, before)
            self._take_step(source, before.step, whole, before.where)

    def _take_step(self, source: str, step: int, metrics: str, where: str) -> None:
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

    def _undo(self, source: str, taken: _OpenStep) -> None:
        run = self._runs.get(source)
        if run is None:
            return
        del run.problems[taken.problems :]
        run.steps.pop(taken.step, None)
        if taken.earlier is not None:
            run.steps[taken.step] = taken.earlier

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
