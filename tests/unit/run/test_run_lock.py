from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import InfrastructureError, InterruptedRunError
from harness.run.scheduling.run_lock import is_held, lock_holder, run_lock

HOLD = """
import sys, time
from pathlib import Path
from harness.run.scheduling.run_lock import run_lock
with run_lock(Path(sys.argv[1]), command=["npu-matrix", "run", "--profile", "all"], wait=False):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "state")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_is_told_who_holds_it(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(InfrastructureError) as caught,
        run_lock(tmp_path / "state", command=["run"], wait=False),
    ):
        raise AssertionError("two runs at once")
    text = str(caught.value)
    assert f"process {other.pid}" in text
    assert "npu-matrix run --profile all" in text


def test_whether_a_run_is_alive_can_be_asked_without_taking_its_place(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    assert is_held(tmp_path / "state")
    other.kill()
    other.wait()
    assert not is_held(tmp_path / "state")
    assert not is_held(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_second_run_waits_and_says_for_whom(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        assert other.stdin is not None
        other.stdin.close()

    with run_lock(tmp_path / "state", command=["second"], wait=True, notify=tell):
        mine = lock_holder(tmp_path / "state")
        assert mine is not None
        assert (mine.pid, mine.command) == (os.getpid(), "second")
    assert f"process {other.pid}" in told[0]
    assert lock_holder(tmp_path / "state") is None


def test_waiting_can_be_stopped(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(InterruptedRunError),
        run_lock(tmp_path / "state", command=["second"], wait=True, stopped=lambda: True),
    ):
        raise AssertionError("two runs at once")


def test_a_dead_holder_blocks_nobody(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert lock_holder(tmp_path / "state") is not None, "it had no time to take its name off"
    with run_lock(tmp_path / "state", command=["next"], wait=False):
        now = lock_holder(tmp_path / "state")
        assert now is not None
        assert now.command == "next"


def test_a_garbled_signature_is_no_obstacle(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    (tmp_path / "state" / "run.lock.json").write_text("{")
    with (
        pytest.raises(InfrastructureError, match="another run uses") as caught,
        run_lock(tmp_path / "state", command=["x"], wait=False),
    ):
        raise AssertionError("two runs at once")
    assert "another process" in str(caught.value)


def test_a_state_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InfrastructureError, match="lock"),
        run_lock(tmp_path / "file", command=["x"], wait=True),
    ):
        raise AssertionError("held nothing")
