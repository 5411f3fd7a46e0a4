"""How much of the machine others use while a training runs."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from harness.convergence.telemetry import machine_load
from harness.convergence.telemetry.machine_load import OtherProcesses, largest_load
from harness.convergence.telemetry.training_records import MachineLoad

STAT = "cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1 2 3 4\n"


@pytest.fixture
def times(tmp_path, monkeypatch):
    """Writes the machine's times, in seconds; of this process there are none."""
    path = tmp_path / "stat"
    monkeypatch.setattr(machine_load, "_TIMES", path)
    monkeypatch.setattr(machine_load.os, "times", lambda: (0.0, 0.0, 0.0, 0.0, 0.0))
    ticks = machine_load.os.sysconf("SC_CLK_TCK")

    def write(**seconds):
        given = {"user": 0, "idle": 0, "steal": 0, **seconds}
        path.write_text(STAT.format(**{name: value * ticks for name, value in given.items()}))

    return write


def test_the_share_of_others_is_what_is_busy_and_not_ours(times, monkeypatch):
    times(user=100, idle=100)
    others = OtherProcesses()
    times(user=106, idle=102, steal=2)
    monkeypatch.setattr(machine_load.os, "times", lambda: (1.0, 1.0, 2.0, 0.0, 0.0))

    assert others.share() == pytest.approx(0.4)


def test_a_machine_of_its_own_has_no_others(times):
    times(user=100, idle=100)
    others = OtherProcesses()
    times(user=100, idle=120)

    assert others.share() == 0.0


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu a b\n"])
def test_what_cannot_be_read_is_not_known(tmp_path, monkeypatch, text):
    path = tmp_path / "stat"
    path.write_text(text)
    monkeypatch.setattr(machine_load, "_TIMES", path)

    assert OtherProcesses().share() is None


WORK_SECONDS = 0.4
WORK = f"import time\nwhile time.process_time() < {WORK_SECONDS}: pass\n"


def test_a_child_that_was_waited_for_is_no_other():
    before = machine_load._used()
    subprocess.run([sys.executable, "-c", WORK], check=True)
    after = machine_load._used()

    # Kernels count in ticks, some of them roughly: half of it is far from none, and so from where it belongs.
    assert after[3] - before[3] > WORK_SECONDS / 2 > after[2] - before[2]


def test_a_grandchild_that_nobody_waits_for_is_no_other(monkeypatch):
    """Like Ray's daemon, it does not wait for its workers, so their processor times are not added to its own."""
    monkeypatch.setattr(machine_load, "LOOK_SECONDS", 0.0)
    ignoring = """
import signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdout=subprocess.PIPE)
sys.stdin.readline()
child.kill()
child.wait()
"""
    # The processor time of the parent process itself.
    before = machine_load._used()
    subprocess.run([sys.executable, "-c", "import signal, subprocess, sys"], check=True)
    start_up = machine_load._used()[3] - before[3]
    others = OtherProcesses()
    with subprocess.Popen([sys.executable, "-c", ignoring], stdin=subprocess.PIPE) as process:
        while max(others._below.values(), default=0.0) < 2 * (WORK_SECONDS + start_up):
            others.look()
            time.sleep(0.02)
        process.communicate(b"\n")
    child = max(others._below.values())
    waited_for = machine_load._used()[3] - others._start[3]

    assert child > waited_for
    assert 0.0 <= others.share() <= 1.0


def test_several_runs_are_as_crowded_as_the_most_crowded():
    quiet, busy = MachineLoad(id="x", load=0.1, others=0.0), MachineLoad(id="x", load=2.0, others=0.7)

    assert largest_load([quiet, busy]) == busy
    assert largest_load([quiet, MachineLoad(id="x", load=0.1)]).others is None
