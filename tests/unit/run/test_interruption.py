"""Signals stop a run, except a SIGHUP that `nohup` ignores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# In a separate process, so that the signal handlers of the test process do not change.
PROGRAM = """
import os, signal, sys
from harness.run.programs.interruption import Interruption
number = signal.Signals[sys.argv[1]]
# If the tests run under nohup, their child processes inherit the ignored SIGHUP.
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[2] == "ignored" else signal.SIG_DFL)
before = signal.getsignal(number)
with Interruption() as stopped:
    os.kill(os.getpid(), number)
    print(stopped())
assert signal.getsignal(number) == before
"""


@pytest.mark.parametrize(
    ("name", "hangup", "stops"),
    [
        ("SIGINT", "default", True),
        ("SIGTERM", "default", True),
        ("SIGHUP", "default", True),
        ("SIGHUP", "ignored", False),
        ("SIGTERM", "ignored", True),
    ],
)
def test_a_signal_stops_a_run_but_not_the_hangup_that_nohup_ignores(
    name: str, hangup: str, stops: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, hangup],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.strip() == str(stops)
