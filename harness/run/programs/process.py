"""Runs external programs in a scrubbed environment, streams their output, and leaves no process behind."""

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
# Within this time a container's processes print their stacks and the container is removed.
CONTAINED_GRACE_SECONDS = 25.0
# If the supervisor has not ended this long after the grace period, it is stuck and is killed.
HARD_SECONDS = supervise.SWEEP_SECONDS + 5.0

# The variables of the user's environment that programs may see: search paths, locale, network, caches. Of our
# own, only settings: the others are what our programs tell each other, for example facts about the device.
# uv gets its variables from `IndexSettings`: others, such as UV_OVERRIDE, change what a cell resolves to.
ALLOWED = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|LC_.*|TZ|TMPDIR|TEMP|TMP|XDG_.*"
    r"|(HTTP|HTTPS|FTP|ALL|NO)_PROXY|(http|https|ftp|all|no)_proxy"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|GIT_SSL_.*"
    r"|PIP_.*|HF_.*|CC|CXX|OMP_NUM_THREADS|ASCEND_.*"
    r"|NPU_MATRIX_(CACHE|CHECKOUT|FETCH|FETCH_FILE|FETCHED_MIRRORS|LEASES|MIRRORS|NODES|RAY_ADDRESS|REFERENCES)"
)
# Of these, the variables that programs in a cell do not see: they install nothing and connect to no cluster.
NOT_IN_CELLS = re.compile(r"PIP_.*|UV_.*|NPU_MATRIX_RAY_ADDRESS")
# Programs write to a file, so they must not use colours or move the cursor, nor buffer their output.
FIXED = {"TERM": "dumb", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def scrubbed_environment(
    environ: Mapping[str, str], added: Mapping[str, str] | None = None, *, in_cell: bool = False
) -> dict[str, str]:
    """The allowed variables of `environ`, the fixed values, and `added`, which has precedence.

    in_cell: for a program in a cell, which does not see the credentials of package indexes.
    """
    allowed = {
        name: value
        for name, value in environ.items()
        if ALLOWED.fullmatch(name) and not (in_cell and NOT_IN_CELLS.fullmatch(name))
    }
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
    """Run `argv` until it ends, for at most `timeout` seconds, or until `stopped()`.

    The output is passed to `write` as whole lines. When this returns, or if this process dies, the program
    and all processes that it started are stopped. To stop early, `signal_number` is sent to all of them, or
    with `alone` only to the program itself; after `grace` seconds follows SIGKILL to all. If its processes
    together use more than `memory_bytes` (0: no limit), they are killed, and the output says so. `returncode`
    is negative after a signal. InfrastructureError if the program does not exist or cannot be started.
    """
    _require_executable(argv[0], env, cwd)
    started = time.monotonic()
    deadline = None if timeout is None else started + timeout
    process = _start_supervised(
        supervise.ProgramRequest(
            argv=list(argv),
            env=dict(env),
            cwd=str(cwd),
            grace=grace,
            signal=int(signal_number),
            alone=alone,
            memory=memory_bytes,
        )
    )
    stream = _Stream(write)
    timed_out = False
    try:
        # `with` closes both pipes, which the supervisor understands as the request to stop.
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
    """Passes the program's merged output on as whole lines, and remembers its end."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.tail = ""
        self._write = write
        self._lines = LineAssembler()

    def pump(self, process: subprocess.Popen[bytes]) -> bool:
        """Pass on the output that arrives within a tick; False at the end of the output."""
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
            self.tail += text
            if len(self.tail) > TAIL_CHARACTERS:
                # Whole lines: half a secret would not be masked.
                start = len(self.tail) - TAIL_CHARACTERS
                self.tail = self.tail[self.tail.find("\n", start - 1) + 1 or len(self.tail) :]
            self._write(text)


def _require_executable(program: str, env: Mapping[str, str], cwd: Path) -> None:
    name = str(cwd / program) if "/" in program else program
    search_path = env.get("PATH", os.defpath)
    if shutil.which(name, path=search_path) is None:
        raise InfrastructureError(
            f"cannot run {program!r}: there is no such program",
            why=f"it is neither an executable file nor on PATH ({search_path})",
            fix="install it, or put it on PATH",
        )


def _start_supervised(request: supervise.ProgramRequest) -> subprocess.Popen[bytes]:
    message = json.dumps(request._asdict()).encode()
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
            f"cannot start {request.argv[0]!r}",
            why=error.strerror or str(error),
            fix="free memory or raise the process limit, then run again",
        ) from error
    assert process.stdin is not None
    # If the supervisor has died already, its output ends.
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(len(message).to_bytes(supervise.LENGTH_BYTES, "big") + message)
        process.stdin.flush()
    return process


def _stop(process: subprocess.Popen[bytes], stream: _Stream, grace: float) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    deadline = time.monotonic() + grace + HARD_SECONDS
    while time.monotonic() < deadline and stream.pump(process):
        pass
