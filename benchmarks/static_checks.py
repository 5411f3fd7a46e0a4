"""All static checks of the shipped matrix: seconds and memory, cold and unchanged.

Packages and the index's answers are in the caches (a first run, not counted, puts them there); outcomes and
analyses of packages are not. The rival checks each cell for itself and keeps nothing of the others; its time
is computed from four cells.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import ROOT, CannotRunError, Figure, user_cache

ALONE = 4
CHECKS = ("resolve", "lint", "npu-ops", "api", "patches")
SAMPLE_S = 0.1
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") >> 10


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds, and MiB at the peak."""

    wall: float
    peak: int


class Peak(threading.Thread):
    """Samples the resident memory of a process and all below it; shared pages count for each."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root = root
        self.kib = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(SAMPLE_S):
            below, memory = defaultdict(list), {}
            for entry in Path("/proc").glob("[0-9]*"):
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                below[int(fields[1])].append(int(entry.name))
                memory[int(entry.name)] = int(fields[21]) * PAGE_KIB
            total, waiting = 0, [self._root]
            while waiting:
                process = waiting.pop()
                total += memory.get(process, 0)
                waiting += below[process]
            self.kib = max(self.kib, total)


class StaticRun:
    """Folders of their own; the sources of packages are those of the user's cache."""

    def __init__(self, scratch: Path, cache: Path) -> None:
        self._state, self._cache = scratch / "state", scratch / "cache"
        self._cache.mkdir()
        (cache / "sources").mkdir(parents=True, exist_ok=True)
        (self._cache / "sources").symlink_to(cache / "sources")
        self._reports = scratch / "reports"
        self._environ = {**os.environ, "PYTHONPATH": str(ROOT)}

    def forget(self) -> None:
        """Leave only the packages."""
        shutil.rmtree(self._state, ignore_errors=True)
        shutil.rmtree(self._cache / "pairs", ignore_errors=True)

    def run(self, only: str = "*") -> Cost:
        """One run of the static checks."""
        checks = [argument for check in CHECKS for argument in ("--check", check)]
        argv = [
            *(sys.executable, "-m", "harness"),
            *("--state", str(self._state), "--cache", str(self._cache)),
            *("run", "--jobs", "0", "--only", only, "--reports", str(self._reports), *checks),
        ]
        started = time.perf_counter()
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(argv, cwd=ROOT, env=self._environ, stdout=said, stderr=said)
            peak = Peak(process.pid)
            peak.start()
            _pid, status = os.waitpid(process.pid, 0)
            wall = time.perf_counter() - started
            process.returncode = os.waitstatus_to_exitcode(status)
            peak.ended.set()
            said.seek(0)
            text = said.read()
        executed = re.search(r"\d+ executed, \d+ reused", text)
        if process.returncode not in (0, 1) or not executed:
            raise CannotRunError(
                f"the run ended with {process.returncode}: {text[-300:]}", "make the package index reachable"
            )
        return Cost(wall=wall, peak=peak.kib >> 10)


def cells() -> list[str]:
    """The cells of the shipped matrix."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", "plan"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [line.split()[0] for line in done.stdout.splitlines() if re.match(r"\S+-[0-9a-f]{12} ", line)]


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        bench = StaticRun(Path(folder), user_cache())
        bench.run()
        bench.forget()
        cold = bench.run()
        again = bench.run()
        every = cells()
        alone = []
        for cell in every[:: max(1, len(every) // ALONE)][:ALONE]:
            bench.forget()
            alone.append(bench.run(only=cell).wall)
    yield Figure(
        claim="static checks of the shipped matrix, cold",
        measured=cold.wall,
        unit="s",
        limit=60,
        rival=sum(alone) / len(alone) * len(every),
        rival_name="every cell for itself",
    )
    yield Figure(claim="the same, peak memory of all processes", measured=cold.peak, unit="MiB", limit=1500)
    yield Figure(
        claim="the same again, nothing executed",
        measured=again.wall,
        unit="s",
        limit=3,
        rival=cold.wall,
        rival_name="cold",
    )
