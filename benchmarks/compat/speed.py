"""All static checks of the shipped matrix: `python -m benchmarks.compat.speed [options]`.

Packages and the index's answers are in the caches (a first run, not counted, puts them there); outcomes and
answers about packages are not. Printed are wall and processor seconds and the peak memory of all processes
together, for a cold run, the same again, and one new verl commit (the row `verl-main` after the parent of its
commit; needs `--mirrors`). The obvious alternative is to look at every cell for itself, with nothing kept of
the others: `--alternative` runs that too and prints the ratio.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.package_pairs import Package
from harness.sources.packages.release_sources import commit_sources

REPOSITORY = Path(__file__).parents[2]
CHECKS = ("resolve", "lint", "npu-ops", "api", "patches")
SAMPLE_S = 0.1
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") >> 10


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds, MiB at the peak, and what the command printed last."""

    wall: float
    processor: float
    peak: int
    said: str

    def __str__(self) -> str:
        return f"{self.wall:6.1f} s wall, {self.processor:6.1f} s processor, {self.peak:5} MiB; {self.said}"


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


class Bench:
    """Folders of their own; the sources of packages are those of the user's cache."""

    def __init__(self, scratch: Path, cache: Path, mirrors: Path | None) -> None:
        self._state, self._cache = scratch / "state", scratch / "cache"
        self._cache.mkdir()
        (cache / "sources").mkdir(parents=True, exist_ok=True)
        (self._cache / "sources").symlink_to(cache / "sources")
        self._reports = scratch / "reports"
        self._environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        if mirrors:
            self._environ["NPU_MATRIX_MIRRORS"] = str(mirrors)

    def forget(self) -> None:
        """Leave only the packages."""
        shutil.rmtree(self._state, ignore_errors=True)
        shutil.rmtree(self._cache / "pairs", ignore_errors=True)

    def run(self, only: str = "*", matrix: Path = REPOSITORY / "matrix.yaml") -> Cost:
        """One run of the static checks."""
        checks = [argument for check in CHECKS for argument in ("--check", check)]
        argv = [
            *(sys.executable, "-m", "harness", "--matrix", str(matrix)),
            *("--state", str(self._state), "--cache", str(self._cache)),
            *("run", "--jobs", "0", "--only", only, "--reports", str(self._reports), *checks),
        ]
        started = time.perf_counter()
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(argv, cwd=REPOSITORY, env=self._environ, stdout=said, stderr=said)
            peak = Peak(process.pid)
            peak.start()
            _pid, status, usage = os.wait4(process.pid, 0)
            wall = time.perf_counter() - started
            process.returncode = os.waitstatus_to_exitcode(status)
            peak.ended.set()
            said.seek(0)
            text = said.read()
        executed = re.search(r"\d+ executed, \d+ reused", text)
        if process.returncode not in (0, 1) or not executed:
            sys.exit(f"the run ended with {process.returncode}\n{text[-2000:]}")
        return Cost(
            wall=wall, processor=usage.ru_utime + usage.ru_stime, peak=peak.kib >> 10, said=executed[0]
        )


def earlier(commit: str, back: int, mirrors: Path) -> str:
    """The verl commit so many before one."""
    for repository in (*mirrors.glob("*verl*/repo*"), *mirrors.glob("verl*")):
        done = subprocess.run(
            ["git", "-C", str(repository), "rev-parse", f"{commit}~{back}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.strip()
    sys.exit(f"no repository below {mirrors} has {commit}")


def read_after(commit: str, back: int, mirrors: Path, cache: Path) -> None:
    """What reading a verl commit costs when one so many commits before it was read."""
    read = []
    with tempfile.TemporaryDirectory() as folder:
        answers = AnalysisCache(folder=Path(folder), code="benchmark")
        for one in (earlier(commit, back, mirrors), commit):
            file = commit_sources(one, cache=cache, mirrors=mirrors)
            assert file
            started = time.process_time()
            uses = Package(name="verl", version=one, file=file).uses(answers).uses
            read.append((time.process_time() - started, len(uses)))
    (alone, _), (after, found) = read
    print(
        f"verl {commit[:9]} after the commit {back} before it: {after:.2f} s processor for {found} uses; "
        f"from nothing {alone:.2f} s, {alone / after:.0f} times"
    )


def cells() -> Sequence[str]:
    """The cells of the shipped matrix."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", "plan"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return [line.split()[0] for line in done.stdout.splitlines() if re.match(r"\S+-[0-9a-f]{12} ", line)]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/npu-matrix")
    parser.add_argument("--mirrors", type=Path, help="folder of clones; without it commits are not looked at")
    parser.add_argument("--alternative", action="store_true", help="every cell for itself, too")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        bench = Bench(scratch, chosen.cache, chosen.mirrors)
        print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        bench.run()
        bench.forget()
        cold = bench.run()
        print(f"cold           {cold}")
        print(f"the same again {bench.run()}")
        if chosen.mirrors:
            row = re.search(r"verl: \S+\.dev0@([0-9a-f]{40})", main_row())
            assert row
            for back in (1, 20):
                read_after(row[1], back, chosen.mirrors, chosen.cache)
            text = (REPOSITORY / "matrix.yaml").read_text("utf-8")
            parent = earlier(row[1], 1, chosen.mirrors)
            (scratch / "matrix.yaml").write_text(text.replace(row[1], parent), "utf-8")
            bench.forget()
            bench.run(matrix=scratch / "matrix.yaml")
            newer = bench.run()
            print(f"one verl commit later {newer}")
            bench.forget()
            fresh = bench.run(only="verl-main*")
            share = fresh.processor / newer.processor
            print(f"its cell with nothing kept {fresh}: {share:.1f} times the processor time")
        if chosen.alternative:
            alone = []
            for cell in cells():
                bench.forget()
                alone.append(bench.run(only=cell))
            wall, processor = sum(one.wall for one in alone), sum(one.processor for one in alone)
            print(
                f"each cell for itself: {wall:.1f} s wall, {wall / cold.wall:.1f} times cold; "
                f"{processor:.1f} s processor, {processor / cold.processor:.1f} times"
            )
        print(f"load average after: {os.getloadavg()[0]:.1f}")


def main_row() -> str:
    """The text of row `verl-main` in the shipped matrix."""
    text = (REPOSITORY / "matrix.yaml").read_text("utf-8")
    return text[text.index("\n  verl-main:") :]


if __name__ == "__main__":
    main()
