"""How long `npu-matrix --help` and `npu-matrix plan` take, compared with an empty Python interpreter."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.figures import ROOT, Figure

REPEATS = 7


def figures() -> Iterator[Figure]:
    empty = median_ms([sys.executable, "-c", "pass"])
    for command in ("--help", "plan"):
        yield Figure(
            claim=f"npu-matrix {command}, median of {REPEATS}",
            measured=median_ms([sys.executable, "-m", "harness", command]),
            unit="ms",
            rival=empty,
            rival_name="an empty Python",
        )


def median_ms(argv: list[str]) -> float:
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(argv, cwd=ROOT, env=environ, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return round(1000 * statistics.median(seconds), 1)
