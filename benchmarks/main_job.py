"""The main job: a cold run, the same command again, and once more after one patch was touched.

State, cache and uv's cache are in a fresh folder, so that the cold run installs every package. The rival of a
repeated run is to run everything again. Overhead is the time of the run in which no task was running.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import ROOT, CannotRunError, Figure, timed
from harness.ledger.store import Ledger


def run_main_job(checkout: Path, environ: dict[str, str]) -> float:
    """Seconds of `npu-matrix run`."""
    with timed() as took:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "run"],
            cwd=checkout,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise CannotRunError(
            f"the main job ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}",
            "make `npu-matrix run` pass",
        )
    return took.seconds


def touch_a_patch(checkout: Path) -> None:
    """Change a comment in the patch variant for verl 0.9.1: the content differs, the effect does not."""
    body = checkout / "patches/verl/agg-loss-all-masked/0.9.0.patch"
    lines = body.read_text().splitlines(keepends=True)
    comment = next(index for index, line in enumerate(lines) if line.startswith("+") and "#" in line)
    lines[comment] = lines[comment].replace("#", "# touched:", 1)
    body.write_text("".join(lines))


def last_run(checkout: Path) -> tuple[float, int]:
    """The overhead of the latest run in percent, and the number of its outcomes."""
    with Ledger.open(checkout / ".npu-matrix") as ledger:
        run = ledger.latest_run()
        assert run
        assert run.finished
        outcomes = ledger.history(run_id=run.run_id, limit=100_000)
    busy, end = 0.0, run.started
    for begin, finish in sorted((one.started, one.finished) for one in outcomes):
        busy += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    return 100 * (1 - busy / (run.finished - run.started)), len(outcomes)


def figures() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        checkout = folder / "checkout"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
        environ = {
            **os.environ,
            "PYTHONPATH": str(checkout),
            "NPU_MATRIX_CACHE": str(folder / "cache"),
            "UV_CACHE_DIR": str(folder / "uv"),
        }
        cold = run_main_job(checkout, environ)
        yield Figure(claim="main job, cold", measured=cold, unit="s", limit=600)
        yield Figure(
            claim="main job, share of the time without a running task",
            measured=last_run(checkout)[0],
            unit="%",
            limit=10,
        )
        again = run_main_job(checkout, environ)
        claim = "main job again, nothing changed"
        yield Figure(claim=claim, measured=again, unit="s", limit=5, rival=cold, rival_name="cold")
        yield Figure(claim="tasks that it executed", measured=last_run(checkout)[1], limit=0)
        touch_a_patch(checkout)
        touched = run_main_job(checkout, environ)
        claim = "main job after one patch was touched"
        yield Figure(claim=claim, measured=touched, unit="s", limit=cold, rival=cold, rival_name="cold")
