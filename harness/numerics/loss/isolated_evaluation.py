"""Evaluates a candidate in processes of its own: one that hangs, crashes or uses too much memory gets an
error.

    results = evaluate_isolated("mypackage.losses:candidate", cases, timeout_s=60)

The candidate is named, not passed, so that it is imported over there: `module:attribute`, a callable from
case to result.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from harness.errors import HarnessError, InputError
from harness.numerics.loss.candidate import (
    Candidate,
    CandidateResult,
    evaluate_one,
    load_results,
    save_results,
)
from harness.numerics.loss.cases.loss_case import LossCase, load_cases, save_cases

POLL_S = 0.05
CASES_FILE = "cases.npz"
CURRENT = "current"
LAST_WORDS = 300


def evaluate_isolated(
    candidate: str, cases: Sequence[LossCase], *, timeout_s: float, memory_bytes: int | None = None
) -> dict[str, CandidateResult]:
    """Results by case name; `timeout_s` is for each case (for the first one with the start of the process).

    memory_bytes: address space of the process; what needs more fails with MemoryError. Where a process ends
    or hangs, the case it was in gets an error and another process goes on with the next one; where it never
    came to a case, all get that error.
    """
    parse_candidate(candidate)
    results: dict[str, CandidateResult] = {}
    with tempfile.TemporaryDirectory(prefix="npu-matrix-loss-") as folder:
        workdir = Path(folder)
        save_cases(workdir / CASES_FILE, cases)
        first = 0
        while first < len(cases):
            reason = _run_from(first, candidate, workdir, timeout_s, memory_bytes)
            done = _collect(workdir, cases, first)
            results.update(done)
            first += len(done)
            # A process that never came to a case would not the next time: the candidate cannot be loaded.
            lost = cases[first : first + 1] if (workdir / CURRENT).is_file() else cases[first:]
            results.update({case.name: CandidateResult(error=reason, seconds=timeout_s) for case in lost})
            first += len(lost)
    return results


def parse_candidate(candidate: str) -> tuple[str, str]:
    """Module and attribute of `module:attribute`; InputError when it is not of that form."""
    module, colon, attribute = candidate.partition(":")
    if not (module and colon and attribute.isidentifier()):
        raise InputError(
            f"{candidate!r} names no candidate",
            why="a candidate is imported in another process, so it needs a name",
            fix="write module:attribute, for example mypackage.losses:candidate",
        )
    return module, attribute


def _run_from(first: int, candidate: str, workdir: Path, timeout_s: float, memory_bytes: int | None) -> str:
    """Run a process from case `first` on; why it stopped before the last case (unused when it did not)."""
    command = [
        sys.executable,
        "-m",
        __spec__.name,
        candidate,
        str(workdir),
        str(first),
        str(memory_bytes or 0),
    ]
    log = workdir / "log"
    current = workdir / CURRENT
    current.unlink(missing_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # A process that dies takes its buffers with it, and with them the reason.
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            hung = not _watch(process, current, timeout_s)
        finally:
            _end(process)
    if hung:
        return f"hung: no result within {timeout_s:g} s"
    words = log.read_text(encoding="utf-8", errors="replace").strip()[-LAST_WORDS:]
    code = process.returncode
    cause = f"killed by signal {-code}" if code < 0 else f"its process ended with code {code}"
    return f"{cause}: {' '.join(words.split())}" if words else cause


def _watch(process: subprocess.Popen[bytes], current: Path, timeout_s: float) -> bool:
    """Wait for the process; False as soon as one case takes longer than `timeout_s`."""
    case, since = "", time.monotonic()
    while process.poll() is None:
        now = current.read_text(encoding="utf-8") if current.is_file() else ""
        if now != case:
            case, since = now, time.monotonic()
        if time.monotonic() - since > timeout_s:
            return False
        time.sleep(POLL_S)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it started; it leads a session of its own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _collect(workdir: Path, cases: Sequence[LossCase], first: int) -> dict[str, CandidateResult]:
    found: dict[str, CandidateResult] = {}
    for number in range(first, len(cases)):
        file = workdir / f"{number}.npz"
        if not file.is_file():
            break
        found.update(load_results(file))
    return found


def _serve(candidate: str, workdir: Path, first: int, memory_bytes: int) -> None:
    """The other process: evaluate the cases from `first` on, one file each."""
    if memory_bytes:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    module, attribute = parse_candidate(candidate)
    evaluator: Candidate = getattr(import_module(module), attribute)
    cases = load_cases(workdir / CASES_FILE)
    for number, case in enumerate(cases[first:], start=first):
        (workdir / CURRENT).write_text(case.name, encoding="utf-8")
        save_results(workdir / f"{number}.npz", {case.name: evaluate_one(evaluator, case)})


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the other process."""
    parser = argparse.ArgumentParser(prog="python -m harness.numerics.loss.isolated_evaluation")
    parser.add_argument("candidate")
    parser.add_argument("workdir", type=Path)
    parser.add_argument("first", type=int)
    parser.add_argument("memory_bytes", type=int)
    arguments = parser.parse_args(argv)
    try:
        _serve(arguments.candidate, arguments.workdir, arguments.first, arguments.memory_bytes)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
