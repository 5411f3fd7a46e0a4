"""Forked workers behave like separate programs for the process that started them."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import harness
from harness.convergence.trainer.supervision import process_stacks, zygote_client
from harness.convergence.trainer.supervision.processes import Process
from harness.convergence.trainer.trainer_environment import STACK_SIGNAL

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks hand over files as Linux does")

TELLS = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "here": os.getcwd(), "colour": os.environ["COLOUR"], "name": __name__,
                  "shared": "harness.convergence.trainer.supervision.zygote_client" in sys.modules, "pid": os.getpid()}))
print("to stderr", file=sys.stderr)
raise SystemExit(7)
"""
DRAWS = "import numpy; print(numpy.random.rand())"
RAISES = "raise ValueError('wrong')"
ENDS_ITSELF = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
WAITS = "import sys; print('here', flush=True); sys.stdin.readline(); print('done')"


@pytest.fixture
def zygote(tmp_path):
    """The socket of a zygote that imports what there is here."""
    path = tmp_path / "zygote"
    environment = {**os.environ, "PYTHONPATH": str(Path(harness.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-m", "harness.convergence.trainer.supervision.zygote", str(path)]
    with subprocess.Popen(program, env=environment, stderr=subprocess.DEVNULL) as process:
        while not path.exists():
            assert process.poll() is None
            time.sleep(0.02)
        yield path
        process.kill()


def client(socket, tmp_path, text, *arguments, options=(), **more):
    """A worker as Ray starts one."""
    program = tmp_path / "worker.py"
    program.write_text(text)
    started = [sys.executable, "-I", "-S", zygote_client.__file__, str(socket), *options, str(program)]
    return subprocess.Popen(
        [*started, *arguments],
        env={**os.environ, "COLOUR": "green"},
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


def test_a_fork_has_its_callers_words_files_folder_and_environment(zygote, tmp_path):
    worker = client(zygote, tmp_path, TELLS, "a b", "--c", options=["-s"])
    out, err = worker.communicate(timeout=60)

    told = json.loads(out)
    assert worker.returncode == 7
    assert told.pop("pid") != worker.pid
    assert told == {
        "argv": ["a b", "--c"],
        "here": str(tmp_path),
        "colour": "green",
        "name": "__main__",
        "shared": False,
    }
    assert err == "to stderr\n"


def test_forks_draw_other_numbers(zygote, tmp_path):
    pytest.importorskip("numpy")
    drawn = [client(zygote, tmp_path, DRAWS).communicate(timeout=60)[0] for _ in range(2)]

    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(("text", "code"), [(RAISES, 1), (ENDS_ITSELF, 128 + signal.SIGKILL)])
def test_a_worker_that_fails_is_told(zygote, tmp_path, text, code):
    worker = client(zygote, tmp_path, text)
    _, err = worker.communicate(timeout=60)

    assert worker.returncode == code
    assert ("ValueError: wrong" in err) == (text == RAISES)


def test_workers_run_beside_each_other(zygote, tmp_path):
    first, second = (client(zygote, tmp_path, WAITS, stdin=subprocess.PIPE) for _ in range(2))
    assert first.stdout.readline() == second.stdout.readline() == "here\n"

    assert second.communicate("go\n", timeout=60)[0] == "done\n"
    assert first.poll() is None
    assert first.communicate("go\n", timeout=60)[0] == "done\n"


def test_it_ends_with_whoever_started_it(tmp_path):
    """A run that is killed cannot end it any more."""
    path = tmp_path / "zygote"
    program = f"""
import subprocess, sys, time
process = subprocess.Popen([sys.executable, "-m", "harness.convergence.trainer.supervision.zygote", {str(path)!r}])
print(process.pid, flush=True)
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(harness.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        pid = int(parent.stdout.readline())
        while not path.exists():
            time.sleep(0.02)
        parent.kill()
    status = Path(f"/proc/{pid}/status")
    # The process that adopts it may not wait for it.
    while status.exists() and "State:\tZ" not in status.read_text():
        time.sleep(0.02)


def test_without_a_zygote_a_worker_fails(tmp_path):
    worker = client(tmp_path / "nobody", tmp_path, TELLS)

    assert "FileNotFoundError" in worker.communicate(timeout=60)[1]
    assert worker.returncode == 1


def test_what_only_serves_is_not_asked_where_it_stands(tmp_path):
    """They always wait, and would hide who really does."""
    commands = [
        "python -m harness.convergence.trainer.supervision.zygote /tmp/s",
        f"python -I -S {zygote_client.__file__} /tmp/s worker.py",
        "python -u /cell/lib/python3.11/site-packages/ray/dashboard/dashboard.py --host=127.0.0.1",
        "ray::DashboardAgent",
        "ray::RuntimeEnvAgent",
    ]
    asked = []
    # This process answers whoever asks, by any name.
    with (tmp_path / f"{os.getpid()}.stacks").open("w") as stream:
        faulthandler.register(STACK_SIGNAL, file=stream, all_threads=True)
        try:
            for command in [*commands, "ray::WorkerDict.update_actor"]:
                processes = [Process(pid=os.getpid(), command=command)]
                asked += [command for _ in process_stacks.collect(processes, tmp_path)[0][:1]]
        finally:
            faulthandler.unregister(STACK_SIGNAL)

    assert asked == ["ray::WorkerDict.update_actor"]
