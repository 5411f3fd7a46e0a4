"""Supervising a program until it ends or hangs."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

import harness
from harness.convergence.trainer.supervision import supervised_run
from harness.convergence.trainer.supervision.processes import PR_SET_CHILD_SUBREAPER
from harness.convergence.trainer.trainer_environment import PROCESSES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the trainer's processes are found by /proc")

# A child process that hangs after its first step, with our plug-in.
STANDS_STILL = """
import subprocess, sys, time
import harness.convergence.trainer.verl_extensions.verl_plugin
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("child", child.pid, flush=True)
def waiting_for_nobody():
    print("step", flush=True)
    time.sleep(600)
waiting_for_nobody()
"""
LEAVES_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("child", child.pid, flush=True)
"""


def run(tmp_path, program, *, step=60.0, stop_reason=lambda _text: "", helper=()):
    """Supervise a Python program that prints `step` for each step; returns its end and its output."""
    lines = []
    path = tmp_path / "program.py"
    path.write_text(program)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(harness.__file__).parents[1]),
        PROCESSES: str(tmp_path),
    }
    ending = supervised_run.run_supervised(
        [sys.executable, str(path)],
        env=environment,
        cwd=tmp_path,
        process_folder=tmp_path,
        take=lines.append,
        steps=lambda: "".join(lines).count("step\n"),
        limits=supervised_run.TimeLimits(start_up=60.0, step=step),
        stop_reason=lambda: stop_reason("".join(lines)),
        helper=helper,
    )
    return ending, "".join(lines)


@pytest.fixture(autouse=True)
def adopts_nobody_afterwards():
    """What tests after this one leave behind is no business of this process."""
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def is_alive(text):
    pid = int(text.split("child ")[1].split()[0])
    return Path(f"/proc/{pid}").exists()


def test_a_program_that_ends_is_told_by_its_code(tmp_path):
    ending, text = run(tmp_path, "print('step'); raise SystemExit(3)")

    assert ending.returncode == 3
    assert ending.swept == 0
    assert not ending.stacks
    assert "step" in text


def test_what_a_program_leaves_behind_is_ended(tmp_path):
    ending, text = run(tmp_path, LEAVES_A_CHILD)

    assert ending.returncode == 0
    assert ending.swept == 1
    assert not is_alive(text)


def test_a_program_beside_it_is_ended_with_it(tmp_path):
    """Itself it is nothing that was left behind; what it started is."""
    told = tmp_path / "told"
    program = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(told)!r}, "w").write(f"child {{child.pid}} ")
child.wait()
"""
    waits = f"""
import os, time
while not os.path.exists({str(told)!r}) or not open({str(told)!r}).read().endswith(" "):
    time.sleep(0.05)
"""

    ending, _ = run(tmp_path, waits, helper=[sys.executable, "-c", program])

    assert ending.returncode == 0
    assert ending.swept == 1
    assert not is_alive(told.read_text())


def test_a_hopeless_program_is_ended_at_once(tmp_path):
    ending, text = run(tmp_path, STANDS_STILL, stop_reason=lambda text: "it lost" if "step" in text else "")

    assert ending.returncode is None
    assert ending.stop_reason == "it lost"
    assert not ending.stacks
    assert not is_alive(text)


def test_a_program_that_stands_still_is_ended_with_its_children_and_where_it_stood(tmp_path):
    ending, text = run(tmp_path, STANDS_STILL, step=0.5)

    assert ending.returncode is None
    assert ending.start_up is not None
    assert ending.swept == 2
    assert not is_alive(text)
    assert "waiting_for_nobody" in ending.where
