"""Hostile launch scripts: how long and with how much memory `npu-matrix lint` tells what it did not read.

Each script is read by a process of its own, with the time that Python needs to start. None of them is run.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import ROOT, Figure

SECONDS, MEGABYTES = 2, 300
JOB = "python3 -m verl.trainer.main_ppo trainer.nnodes=1\n"
SCRIPTS = {
    "a line of 10 MB": "x=" + "a" * (10 << 20),
    "text that doubles": "x=a; while true; do x=$x$x; done\n" + JOB,
    "loop without end": "while true; do python3 -m verl.trainer.main_ppo a.b=$((i++)); done\n",
    "output without end": "x=$(while true; do echo aaaa; done)\n" + JOB,
    "function that calls itself": "f() { f; f; }; f\n" + JOB,
    "substitution that calls itself": "f() { echo $(f)$(f); }; x=$(f)\n" + JOB,
    "fork bomb": ":(){ :|:& };:\n" + JOB,
    "nested substitutions": "x=" + "$(echo " * 3_000 + ")" * 3_000 + "\n" + JOB,
    "nested quotes": "x=" + '"$(' * 5_000 + "\n" + JOB,
    "braces": "python3 a.py " + "{a,b}" * 40 + "\n",
    "pattern that backtracks": "x=" + "a" * 5_000 + "; y=${x//" + "*a" * 500 + "b/}\n" + JOB,
    "long pipeline": "echo a" + " | cat" * 4_000 + "\n" + JOB,
    "strings in strings": "x='echo'; " + "eval " * 5_000 + "$x\n" + JOB,
    "script that sources itself": "cat > a.sh <<EOF\nsource a.sh; source a.sh\nEOF\nsource a.sh\n" + JOB,
    "conditions that are open": "".join(f'[ "$U{n}" ] && V{n}=1\n' for n in range(400)) + JOB,
    "expressions": "".join(f'x{n}="x{n + 1}*2+1";' for n in range(500)) + "y=$((x0))\n" + JOB,
    "command lines in words": ('ssh h "' + "python " * 100 + '"\n') * 90 + JOB,
    "Windows line ends": JOB.replace(" trainer", " \\\r\n trainer").replace("\n", "\r\n") * 500,
    "csh": "#!/bin/csh\nset x = (1 2)\nforeach i ($x)\n" + JOB + "end\n",
    "fish": "#!/usr/bin/env fish\nfor i in 1 2\n" + JOB + "end\n",
    "PowerShell": "$x = @{a=1}\nforeach ($i in 1..3) { python -m verl.trainer.main_ppo a.b=$i }\n",
    "bytes": "\0\1\2\3" * 1_000,
}


def figures() -> Iterator[Figure]:
    slowest, largest, untold = ("", 0.0), ("", 0.0), []
    with tempfile.TemporaryDirectory() as name:
        for kind, text in SCRIPTS.items():
            file = Path(name, "run.sh")
            file.write_text(text)
            seconds, megabytes, code = read(file, Path(name, "output"))
            logging.getLogger(__name__).info(
                "%s: %.2f s, %.0f MB, exit code %d", kind, seconds, megabytes, code
            )
            slowest = max(slowest, (kind, seconds), key=lambda one: one[1])
            largest = max(largest, (kind, megabytes), key=lambda one: one[1])
            if code not in (0, 1, 2, 4):
                untold.append(kind)
    claims = (f"slowest of {len(SCRIPTS)} hostile scripts ({slowest[0]})", f"largest of them ({largest[0]})")
    yield Figure(claim=claims[0], measured=round(slowest[1], 2), unit="s of CPU", limit=SECONDS)
    yield Figure(claim=claims[1], measured=round(largest[1]), unit="MB", limit=MEGABYTES)
    claim = "those with an exit code that is not documented" + f" ({', '.join(untold)})" * bool(untold)
    yield Figure(claim=claim, measured=len(untold), limit=0)


def read(file: Path, output: Path) -> tuple[float, float, int]:
    """Processor seconds, megabytes and exit code of `npu-matrix lint FILE`, with its child processes."""
    process = os.fork()
    if not process:
        os.chdir(ROOT)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.execv(sys.executable, [sys.executable, "-m", "harness", "lint", str(file)])
    _, status, usage = os.wait4(process, 0)
    seconds = usage.ru_utime + usage.ru_stime
    return seconds, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)
