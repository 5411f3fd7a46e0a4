"""Runs as named series, and the file of JSON lines that a training writes and the host reads.

A file contains any number of runs, also interleaved: for each run a line `run` (the header), lines `step` and
a line `end`. Missing, invalid and repeated lines are named in `problems`. In-cell module.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = {"name": "npu-matrix/training", "version": 1}

# The series of all trainers. reward: mean over the responses of a step; entropy: nats per token; grad_norm:
# L2 norm before clipping, mean over mini-batches; ppo_kl: mean of old - new log-probability; clip_fraction:
# share of clipped tokens; response_length: tokens; mismatch: mean |exp(rollout - trainer log-probability) -
# 1|; zero_variance_groups: share of prompts whose responses all have the same reward; seconds: wall time of a
# step.
SERIES = (
    "reward",
    "exact",
    "entropy",
    "grad_norm",
    "ppo_kl",
    "clip_fraction",
    "pg_loss",
    "response_length",
    "mismatch",
    "zero_variance_groups",
    "seconds",
)
SIGNIFICANT_DIGITS = 6

#: Name of a series -> its value at each step.
Series = Mapping[str, Sequence[float]]

_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """One training: its series, which have equal lengths, and its header.

    complete: whether the program reported its end. problems: problems of the run's lines in the file.
    """

    series: Mapping[str, tuple[float, ...]]
    header: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = True
    problems: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """The number of recorded steps."""
        return max((len(values) for values in self.series.values()), default=0)


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """The runs of a file, in the order of their headers, and the problems that belong to no run."""

    runs: tuple[RecordedRun, ...]
    problems: tuple[str, ...] = ()


def encode(value: float) -> float | str:
    """A number as JSON with six significant digits; "nan", "inf" and "-inf" as text, which JSON lacks."""
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def decode(value: Any) -> float:
    """The number that `encode` wrote. Raises ValueError for anything else."""
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise ValueError(f"not a number: {value!r}")


def encode_series(series: Mapping[str, Sequence[float]]) -> dict[str, tuple[float | str, ...]]:
    """Series as JSON values."""
    return {name: tuple(encode(value) for value in values) for name, values in series.items()}


def decode_series(series: Mapping[str, Sequence[Any]]) -> dict[str, tuple[float, ...]]:
    """The series that `encode_series` wrote, with rounded numbers."""
    return {name: tuple(decode(value) for value in values) for name, values in series.items()}


def read(path: Path) -> Telemetry:
    """All runs of a file. A missing or empty file has no runs and one problem."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Telemetry(runs=(), problems=(f"{path.name} cannot be read: {error.strerror or error}",))
    return parse(text.split("\n"), name=path.name)


def parse(lines: Iterable[str], *, name: str = "telemetry") -> Telemetry:
    """The runs in JSON lines."""
    builders: dict[str, RunBuilder] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        record = _record(line)
        if record is None:
            problems.append(f"{where}: not a complete JSON object: {line.strip()[:60]!r}")
            continue
        run, kind = str(record.get("run", "")), record.get("kind")
        if kind == "run":
            if run in builders:
                problems.append(f"{where}: run {run} starts a second time; its parts are separate runs")
                builders[f"{run} (ended at line {number})"] = builders.pop(run)
            builders[run] = RunBuilder(header=record)
        elif run not in builders:
            problems.append(f"{where}: {kind or 'a line'} of run {run or '?'}, which has no header")
        elif kind == "step":
            builders[run].add(record, where)
        elif kind == "end":
            builders[run].end(record)
        else:
            problems.append(f"{where}: unknown kind of line {kind!r}")
    if not builders:
        problems.append(f"{name} contains no run")
    return Telemetry(runs=tuple(builder.build() for builder in builders.values()), problems=tuple(problems))


class RunBuilder:
    """Collects the step records of one run, in any order, with their problems.

    first: number of the run's first step. ended: whether the program reported its end.
    """

    def __init__(self, header: Mapping[str, Any], *, first: int = 0) -> None:
        self.header = header
        self.first = first
        self.steps: dict[int, dict[str, float]] = {}
        self.problems: list[str] = []
        self.ended = False

    def add(self, record: Mapping[str, Any], where: str) -> None:
        """Add the record of a step: its number as `step`, and the metrics by name."""
        step = record.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            self.problems.append(f"{where}: a step line without a step number")
            return
        if step in self.steps:
            self.problems.append(f"{where}: step {step} occurs again; the later record is used")
        values = {}
        for metric, value in record.items():
            if metric in ("kind", "run", "step"):
                continue
            try:
                values[metric] = decode(value)
            except ValueError:
                self.problems.append(f"{where}: {metric} is {value!r}, not a number")
        self.steps[step] = values

    def end(self, record: Mapping[str, Any]) -> None:
        """Add the end line. What it says about the host is added to the header."""
        self.ended = True
        before, after = self.header.get("host"), record.get("host")
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            self.header = {**self.header, "host": {**before, **after}}

    def build(self) -> RecordedRun:
        """The run so far."""
        numbers = sorted(self.steps)
        problems = list(self.problems)
        missing = sorted(set(range(self.first, numbers[-1] + 1)) - set(numbers)) if numbers else []
        if missing:
            problems.append(f"steps missing: {_some(missing)}")
        series = {}
        for metric in dict.fromkeys(metric for number in numbers for metric in self.steps[number]):
            lacking = [number for number in numbers if metric not in self.steps[number]]
            if lacking:
                problems.append(f"{metric} is omitted: it is missing at steps {_some(lacking)}")
            else:
                series[metric] = tuple(self.steps[number][metric] for number in numbers)
        if not self.ended:
            problems.append(f"no end line: the program stopped after {len(numbers)} steps")
        return RecordedRun(series=series, header=self.header, complete=self.ended, problems=tuple(problems))


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:5])
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
