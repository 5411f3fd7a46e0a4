from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.check import Completed
from harness.errors import InfrastructureError
from harness.run.programs.process import run_program, scrubbed_environment

ENV = {"PATH": os.environ["PATH"]}


def alive(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(happened: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if happened():
            return True
        time.sleep(0.02)
    return happened()


class Lines:
    def __init__(self) -> None:
        self.text = ""

    def __call__(self, text: str) -> None:
        assert text.endswith("\n")
        self.text += text


def run(
    code: str,
    tmp_path: Path,
    *,
    lines: Lines | None = None,
    timeout: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
    env: dict[str, str] | None = None,
    grace: float = 60.0,
) -> Completed:
    return run_program(
        [sys.executable, "-c", code],
        env={**ENV, **(env or {})},
        cwd=tmp_path,
        write=lines or Lines(),
        timeout=timeout,
        stopped=stopped,
        grace=grace,
    )


def test_output_arrives_merged_and_in_lines(tmp_path: Path) -> None:
    lines = Lines()
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr, flush=True); print('end', end='')"
    completed = run(code, tmp_path, lines=lines)
    assert lines.text == "out\nerr\nend\n"
    assert (completed.returncode, completed.tail, completed.timed_out) == (0, "out\nerr\nend\n", False)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_how_a_program_ended_is_what_is_said(tmp_path: Path, code: str, expected: int) -> None:
    assert run(code, tmp_path).returncode == expected


def test_a_program_has_an_empty_input_its_folder_and_its_environment(tmp_path: Path) -> None:
    seen = "repr(sys.stdin.read()), os.getcwd(), os.environ.get('X'), os.getsid(0) == os.getpid()"
    completed = run(f"import os, sys; print({seen}, sep='\\n')", tmp_path, env={"X": "1"})
    assert completed.tail.splitlines() == ["''", str(tmp_path), "1", "True"]


def test_a_large_environment_and_argument_list_pass(tmp_path: Path) -> None:
    env = {f"V{n}": "x" * 1000 for n in range(300)}
    assert run("import os; print(len(os.environ['V299']))", tmp_path, env=env).tail == "1000\n"


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    for program in ("no-such-program", "./no-such-program", "/no/such/program"):
        with pytest.raises(InfrastructureError, match="no such program"):
            run_program([program], env=ENV, cwd=tmp_path, write=Lines(), timeout=None, stopped=lambda: False)


def test_a_file_that_cannot_be_executed_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"\x7fELF nonsense")
    script.chmod(0o755)
    completed = run_program(
        ["./script"], env=ENV, cwd=tmp_path, write=Lines(), timeout=None, stopped=lambda: False
    )
    assert completed.returncode == 127
    assert "cannot execute ./script" in completed.tail


def test_stopping_asks_first_and_lets_the_program_speak(tmp_path: Path) -> None:
    code = """
import os, signal, time
def leave(*_):
    os.write(1, b"saving\\n")
    os._exit(7)
signal.signal(signal.SIGTERM, leave)
os.write(1, b"ready\\n")
time.sleep(600)
"""
    lines = Lines()
    completed = run(code, tmp_path, lines=lines, stopped=lambda: "ready" in lines.text)
    assert completed.returncode == 7
    assert completed.tail == "ready\nsaving\n"


def test_a_program_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    code = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(300)
"""
    lines = Lines()
    completed = run(code, tmp_path, lines=lines, stopped=lambda: "deaf" in lines.text, grace=0.3)
    assert completed.returncode == -9


def test_a_time_limit_ends_it_and_is_said(tmp_path: Path) -> None:
    completed = run("import time; time.sleep(300)", tmp_path, timeout=0.3)
    assert completed.timed_out
    assert completed.returncode == -signal.SIGTERM


def test_a_stop_ends_it_without_being_a_time_out(tmp_path: Path) -> None:
    completed = run("import time; time.sleep(600)", tmp_path, stopped=lambda: True)
    assert not completed.timed_out
    assert completed.returncode == -signal.SIGTERM


LEAVES_DAEMONS = """
import os, sys, time
pids = []
for setsid in (False, True):
    pid = os.fork()
    if pid == 0:
        if setsid:
            os.setsid()
            if os.fork():
                os._exit(0)
        open(f"pid-{setsid}", "w").write(str(os.getpid()))
        time.sleep(300)
        os._exit(0)
while not all(os.path.exists(f"pid-{s}") and open(f"pid-{s}").read() for s in (False, True)):
    time.sleep(0.01)
"""


def read_pids(folder: Path) -> list[int]:
    return [int((folder / f"pid-{name}").read_text()) for name in (False, True)]


@pytest.mark.skipif(sys.platform != "linux", reason="not run: adopting daemons needs Linux")
def test_what_a_program_leaves_behind_is_stopped_even_a_daemon(tmp_path: Path) -> None:
    completed = run(LEAVES_DAEMONS, tmp_path)
    assert completed.returncode == 0
    assert "left behind" in completed.tail
    assert not any(alive(pid) for pid in read_pids(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="not run: adopting daemons needs Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_harness_dies_nothing_it_started_lives_on(tmp_path: Path, number: int) -> None:
    program = LEAVES_DAEMONS + "\nopen('main', 'w').write(str(os.getpid()))\ntime.sleep(300)\n"
    driver = f"""
import sys
from pathlib import Path
from harness.run.programs.process import run_program
run_program([sys.executable, "-c", {program!r}], env={ENV!r}, cwd=Path({str(tmp_path)!r}),
            write=lambda _: None, timeout=None, stopped=lambda: False, grace=0.2)
"""
    with subprocess.Popen([sys.executable, "-c", driver]) as process:
        main = tmp_path / "main"
        try:
            assert wait_until(lambda: main.exists() and main.read_text() != "")
            pids = [int(main.read_text()), *read_pids(tmp_path)]
            assert all(alive(pid) for pid in pids)
            process.send_signal(number)
            process.wait(timeout=60)
        finally:
            process.kill()
    assert wait_until(lambda: not any(alive(pid) for pid in pids))


def test_a_flood_passes_quickly_enough_and_the_tail_is_its_end(tmp_path: Path) -> None:
    size = [0]

    def count(text: str) -> None:
        size[0] += len(text)

    code = "import sys\nfor n in range(300): sys.stdout.write('x' * 99 + '\\n' if n < 0 else ('x' * 99 + '\\n') * 1000)\nprint('end')"
    completed = run_program(
        [sys.executable, "-c", code], env=ENV, cwd=tmp_path, write=count, timeout=60, stopped=lambda: False
    )
    assert size[0] == 30_000_000 + 4
    assert completed.tail.endswith("x\nend\n")
    assert len(completed.tail) <= 1 << 16


def test_a_writer_that_fails_stops_the_program(tmp_path: Path) -> None:
    def full(_text: str) -> None:
        raise InfrastructureError("disk full")

    code = (
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nprint('x', flush=True)\ntime.sleep(300)"
    )
    with pytest.raises(InfrastructureError, match="disk full"):
        run_program(
            [sys.executable, "-c", code],
            env=ENV,
            cwd=tmp_path,
            write=full,
            timeout=None,
            stopped=lambda: False,
            grace=0.1,
        )
    assert wait_until(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_the_environment_is_scrubbed() -> None:
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "https_proxy": "http://p",
        "PIP_INDEX_URL": "i",
        "UV_INDEX": "u",
        "UV_OVERRIDE": "/evil.txt",
        "GITHUB_TOKEN": "t",
        "PYTHONPATH": "/evil",
        "LD_PRELOAD": "/evil.so",
        "MY_PATH": "/x",
        "PYTHONHOME": "/evil",
        "NPU_SIM_FAULTS": "[]",
        "NPU_MATRIX_DEVICE_FACTS": '{"soc": "Ascend910_9391", "count": 8}',
        "NPU_MATRIX_CELL__LD_PRELOAD": "/evil.so",
        "NPU_MATRIX_TRAINER_SEED": "7",
        "NPU_MATRIX_LEASES": "/leases",
    }
    env = scrubbed_environment(environ, {"PYTHONPATH": "/bundle"})
    assert set(env) - {"TERM", "NO_COLOR", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"} == {
        "PATH",
        "LC_ALL",
        "https_proxy",
        "PIP_INDEX_URL",
        "NPU_MATRIX_LEASES",
        "PYTHONPATH",
    }
    assert env["PYTHONPATH"] == "/bundle"


def test_a_program_that_is_stopped_alone_still_has_what_it_started(tmp_path: Path) -> None:
    code = (
        "import os, signal, subprocess, sys\n"
        "service = subprocess.Popen(['sleep', '600'])\n"
        "def stop(*_):\n"
        "    os.write(1, b'service runs\\n' if service.poll() is None else b'service is gone\\n')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "os.write(1, b'up\\n')\n"
        "signal.pause()\n"
    )

    def stopped_with(*, alone: bool) -> str:
        lines = Lines()
        run_program(
            [sys.executable, "-c", code],
            env=ENV,
            cwd=tmp_path,
            write=lines,
            timeout=None,
            stopped=lambda: "up" in lines.text,
            grace=30.0,
            alone=alone,
        )
        return lines.text

    assert "service runs" in stopped_with(alone=True)
