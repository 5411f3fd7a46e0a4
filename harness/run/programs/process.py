"""External programs: argument lists, a scrubbed environment, output as it comes, and never an orphan."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.check import Completed
from harness.errors import InfrastructureError
from harness.run.programs import supervise
from harness.run.programs.task_log import LineAssembler

CHUNK_BYTES = 1 << 16
TAIL_CHARACTERS = 1 << 16
TICK_SECONDS = 0.2
GRACE_SECONDS = 5.0
# A program that runs another one in a container has its stacks to print and the container to remove.
CONTAINED_GRACE_SECONDS = 25.0
# Beyond the grace and the supervisor's own sweep: after that the supervisor itself is stuck.
HARD_SECONDS = supervise.SWEEP_SECONDS + 5.0

# What programs may see of the user's environment: how to find things, reach the network and speak.
ALLOWED = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_.*|TZ|TMPDIR|TEMP|TMP|XDG_.*"
    r"|(HTTP|HTTPS|FTP|ALL|NO)_PROXY|(http|https|ftp|all|no)_proxy"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_.*"
    r"|PIP_.*|UV_.*|HF_.*|CC|CXX|OMP_NUM_THREADS|ASCEND_.*|NPU_MATRIX_.*"
)
# Programs write for a file: no colours, no cursor movement, nothing held back in buffers.
FIXED = {"TERM": "dumb", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def scrubbed_environment(
    environ: Mapping[str, str], added: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The allowed part of `environ`, our fixed values, and `added` over both."""
    allowed = {name: value for name, value in environ.items() if ALLOWED.fullmatch(name)}
    return {**allowed, **FIXED, **(added or {})}


def run_program(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    write: Callable[[str], None],
    timeout: float | None,
    stopped: Callable[[], bool],
    grace: float = GRACE_SECONDS,
    signal_number: int = signal.SIGTERM,
    alone: bool = False,
    memory_bytes: int = 0,
) -> Completed:
    """Run `argv` to its end, its time limit, or until `stopped()`; output goes to `write` as whole lines.

    The program and everything it started are gone when this returns, and soon after the harness dies.
    Ending it early is `signal_number`, with `alone` to the program itself and to nothing it started,
    then SIGKILL for all after `grace` seconds. `returncode` is negative for a signal. With
    `memory_bytes` it is killed when its processes together hold more, and the output says so.
    InfrastructureError when the program is not there or cannot be started.
    """
    _require(argv[0], env, cwd)
    started = time.monotonic()
    deadline = None if timeout is None else started + timeout
    order = {"grace": grace, "signal": int(signal_number), "alone": alone, "memory": memory_bytes}
    process = _start(argv, env, cwd, order)
    stream = _Stream(write)
    timed_out = False
    try:
        # Both pipes close with the `with`: the supervisor takes that for an order to stop.
        with process:
            while stream.pump(process):
                timed_out = deadline is not None and time.monotonic() >= deadline
                if timed_out or stopped():
                    _stop(process, stream, grace)
                    break
            stream.finish()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return Completed(
        argv=tuple(argv),
        returncode=process.returncode,
        tail=stream.tail,
        seconds=time.monotonic() - started,
        timed_out=timed_out,
    )


class _Stream:
    """The program's merged output on its way to the log; keeps its end."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.tail = ""
        self._write = write
        self._lines = LineAssembler()

    def pump(self, process: subprocess.Popen[bytes]) -> bool:
        """Pass on what arrives within a tick; False at the end of the output."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(TICK_SECONDS):
                return True
        chunk = os.read(process.stdout.fileno(), CHUNK_BYTES)
        self._pass_on(self._lines.feed(chunk))
        return bool(chunk)

    def finish(self) -> None:
        self._pass_on(self._lines.finish())

    def _pass_on(self, text: str) -> None:
        if text:
            self.tail = (self.tail + text)[-TAIL_CHARACTERS:]
            self._write(text)


def _require(program: str, env: Mapping[str, str], cwd: Path) -> None:
    where = str(cwd / program) if "/" in program else program
    if shutil.which(where, path=env.get("PATH", os.defpath)) is None:
        raise InfrastructureError(
            f"cannot run {program!r}: there is no such program",
            why=f"not executable as a file, nor on PATH ({env.get('PATH', os.defpath)})",
            fix="install it, or put it on PATH",
        )


def _start(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, limits: Mapping[str, float]
) -> subprocess.Popen[bytes]:
    order = json.dumps({"argv": list(argv), "env": dict(env), "cwd": str(cwd), **limits}).encode()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervise.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={},
        )
    except OSError as error:
        raise InfrastructureError(
            f"cannot start {argv[0]!r}",
            why=error.strerror or str(error),
            fix="free memory or raise the limit on processes, then run again",
        ) from error
    assert process.stdin is not None
    # A supervisor that is already dead shows as the end of its output.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(len(order).to_bytes(supervise.LENGTH_BYTES, "big") + order)
        process.stdin.flush()
    return process


def _stop(process: subprocess.Popen[bytes], stream: _Stream, grace: float) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    deadline = time.monotonic() + grace + HARD_SECONDS
    while time.monotonic() < deadline and stream.pump(process):
        pass
