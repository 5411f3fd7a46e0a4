"""The figures that benchmarks yield, with limits and rivals, and the error of a benchmark that cannot run."""

from __future__ import annotations

import importlib
import os
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import HarnessError
from harness.settings import load_settings

ROOT = Path(__file__).resolve().parents[1]
# The benchmarks use the same synthetic inputs as the tests.
sys.path[:0] = [str(ROOT / "tests" / place) for place in ("support", "unit/numerics", "unit/report")]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A measured number; rival: the number of the obvious alternative, measured in the same run."""

    claim: str
    measured: float
    unit: str = ""
    limit: float | None = None
    is_lower_limit: bool = False
    rival: float | None = None
    rival_name: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the limit was kept; a figure without a limit always counts as kept."""
        if self.limit is None:
            return True
        return self.measured >= self.limit if self.is_lower_limit else self.measured <= self.limit


class CannotRunError(Exception):
    """The benchmark, or a part of it, cannot run on this machine; remedy: what is missing."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason = reason
        self.remedy = remedy


@dataclass
class Timing:
    """Wall and processor seconds of a block, child processes included."""

    seconds: float = field(default=0.0)
    cpu: float = field(default=0.0)


def cpu_seconds() -> float:
    """Processor time of this process and of the child processes it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def user_cache() -> Path:
    """The cache folder of the user's settings: downloaded packages and built cells are there."""
    return load_settings({}, os.environ, ROOT).cache


@contextmanager
def timed() -> Iterator[Timing]:
    """Measure a block."""
    timing, start, cpu = Timing(), time.perf_counter(), cpu_seconds()
    yield timing
    timing.seconds, timing.cpu = time.perf_counter() - start, cpu_seconds() - cpu


def peak_mb() -> float:
    """The peak memory of this process, in which only one benchmark runs."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_benchmark(name: str) -> tuple[list[Figure], str, str]:
    """The figures of one benchmark, why (part of) it did not run, and how it failed."""
    found: list[Figure] = []
    try:
        for figure in importlib.import_module(f"benchmarks.{name}").figures():
            found.append(figure)  # noqa: PERF402 - what was measured before an error is kept
    except CannotRunError as error:
        return found, f"not run: {error.reason}. To run it: {error.remedy}", ""
    except HarnessError as error:
        return found, f"not run: {' '.join(str(error).split())[:300]}", ""
    except Exception as error:  # noqa: BLE001 - a row of the table says so, and the others still run
        traceback.print_exc()
        return found, "", f"failed: {' '.join(repr(error).split())[:300]}"
    return found, "", ""
