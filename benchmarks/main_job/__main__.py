"""python -m benchmarks.main_job [--only GLOB] : every figure as a count, or as a ratio measured in this run.

A cold run (state, cache and uv's cache in a fresh folder), the same command again, and once more after one
patch was touched. The obvious alternative to reuse is to run everything again: the cold run itself. Overhead
is the wall time of the run in which no task was running. Start-up is compared with an empty interpreter.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.ledger.store import Ledger

REPOSITORY = Path(__file__).parents[2]
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="cells to run (glob)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        checkout = folder / "checkout"
        subprocess.run(["git", "clone", "-q", str(REPOSITORY), str(checkout)], check=True)
        environ = {
            **os.environ,
            "PYTHONPATH": str(checkout),
            "NPU_MATRIX_CACHE": str(folder / "cache"),
            "UV_CACHE_DIR": str(folder / "uv"),
        }
        start_up(checkout, environ)
        cold = timed(["run", "--only", arguments.only], checkout, environ)
        print(f"cold run: {cold:.1f} s; overhead {overhead(checkout):.1%} of the run's wall time")
        again = timed(["run", "--only", arguments.only], checkout, environ)
        share = again / cold
        print(f"unchanged: {again:.2f} s = {share:.2%} of cold; executed {executed(checkout)} tasks")
        touch_a_patch(checkout)
        touched = timed(["run", "--only", arguments.only], checkout, environ)
        print(
            f"one patch touched: {touched:.1f} s, {touched / cold:.0%} of cold; {executed(checkout)} executed"
        )


def start_up(checkout: Path, environ: dict[str, str]) -> None:
    nothing = median_seconds([sys.executable, "-c", "pass"], checkout, environ)
    for command in (["--help"], ["plan"]):
        seconds = median_seconds([sys.executable, "-m", "harness", *command], checkout, environ)
        print(f"npu-matrix {command[0]}: {1000 * seconds:.0f} ms, {seconds / nothing:.1f} x an empty Python")


def median_seconds(argv: Sequence[str], checkout: Path, environ: dict[str, str]) -> float:
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        subprocess.run(argv, cwd=checkout, env=environ, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def timed(command: Sequence[str], checkout: Path, environ: dict[str, str]) -> float:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "harness", *command],
        cwd=checkout,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n")
        sys.exit(f"the run ended with {done.returncode}")
    return time.perf_counter() - started


def overhead(checkout: Path) -> float:
    """Share of the latest run's wall time in which no task was running."""
    with Ledger.open(checkout / ".npu-matrix") as ledger:
        run = ledger.latest_run()
        assert run
        assert run.finished
        busy, end = 0.0, run.started
        intervals = [(one.started, one.finished) for one in ledger.history(run_id=run.run_id, limit=100_000)]
        for begin, finish in sorted(intervals):
            busy += max(0.0, finish - max(begin, end))
            end = max(end, finish)
        return 1 - busy / (run.finished - run.started)


def executed(checkout: Path) -> int:
    with Ledger.open(checkout / ".npu-matrix") as ledger:
        run = ledger.latest_run()
        assert run
        return len(ledger.history(run_id=run.run_id, limit=100_000))


def touch_a_patch(checkout: Path) -> None:
    """Another comment in the body for verl 0.9.1: same place, same effect, other content."""
    body = checkout / "patches/verl/agg-loss-all-masked/0.9.0.patch"
    shutil.copy(body, body.with_suffix(".orig"))
    lines = body.read_text().splitlines(keepends=True)
    comment = next(index for index, line in enumerate(lines) if line.startswith("+") and "#" in line)
    lines[comment] = lines[comment].replace("#", "# touched:", 1)
    body.with_suffix(".orig").unlink()
    body.write_text("".join(lines))


if __name__ == "__main__":
    main()
