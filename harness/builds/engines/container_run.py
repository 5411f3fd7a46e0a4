"""Runs a command in a container and passes on its output, exit code and signal.

A task starts this module as a program, so that time limits, logs and orphaned processes are handled as for
every other program. On SIGTERM (the time limit of the task) every Python process in the container prints its
stack, then all are killed. The container is always removed. If that fails, because this program was killed or
the daemon does not respond, `npu-matrix cleanup` finds the container by its labels.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.builds.engines.cann_environment import ADD_PATH, ADDED_PATH, SET_ENV
from harness.builds.engines.engine import ContainerExit, ContainerSpec, Engine, EngineResource, Mount
from harness.builds.engines.open_engine import open_engine
from harness.builds.ownership.owner_labels import make_labels, this_process
from harness.devices.cards.device_nodes import card_nodes, node_groups
from harness.errors import HarnessError, InfrastructureError
from harness.serialisation import load

# Environment variables with this prefix are passed to the command, without the prefix.
PREFIX = "NPU_MATRIX_CELL__"
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
# The first process of a container ignores most signals and must reap children; a shell does both.
FIRST_PROCESS = ("/bin/bash", "-c")
RUN = 'ulimit -c 0; "$@"; exit $?'
# Time for printing stacks, including the delivery of the signal. Together with killing and removing it must
# fit into the time that a task has for its end (`run.programs.process.CONTAINED_GRACE_SECONDS`).
STACK_SECONDS = 8.0
KILLED_SECONDS = 1.5
# How long to wait for more output of a container that has ended.
QUIET_SECONDS = 5.0
REMOVE_SECONDS = 20.0
END_BYTES = 64 << 10
# Beyond this amount of output the engine may have dropped some of it.
FLOOD_BYTES = 1 << 20
# The engine's own log is removed with the container. If the engine truncated it while it is read, output
# would be lost without a notice; the log of the task has a limit that adds one.
ENGINE_LOG_BYTES = 256 << 20
EXPIRE_SECONDS = 86400.0
EXIT_INFRASTRUCTURE = 125
OUT_OF_MEMORY = "npu-matrix: the container was killed for its memory limit"
KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True, kw_only=True)
class ContainedCommand:
    """A command to run in a container, as `contained_command` passes it to this program in JSON.

    The variables that define how to connect to the engine, and those of the command, are in the environment.
    cell: digest of the environment, for labels. mounts: paths, which are the same on the host and inside, and
    whether each is writable. memory_bytes: 0 for no limit.
    """

    engine: str
    image: str
    cell: str
    argv: tuple[str, ...]
    mounts: tuple[tuple[str, bool], ...]
    memory_bytes: int
    shm_bytes: int
    has_npu: bool


def main(argv: list[str]) -> int:
    """Run the `ContainedCommand` whose JSON is `argv[0]`; returns its exit code."""
    command = load(ContainedCommand, argv[0])
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        engine = open_engine(command.engine, os.environ)
        try:
            ended = run_contained(engine, _container_spec(command, os.environ), stopped, _write)
        finally:
            engine.close()
    except InfrastructureError as error:
        _write(f"npu-matrix: {error}\n".encode())
        return EXIT_INFRASTRUCTURE
    if ended.out_of_memory or (ended.code == KILLED and command.memory_bytes and not stopped.is_set()):
        _write(f"{OUT_OF_MEMORY} of {command.memory_bytes / 2**30:.1f} GiB\n".encode())
    return ended.code


def run_contained(
    engine: Engine, spec: ContainerSpec, stopped: threading.Event, write: Callable[[bytes], None]
) -> ContainerExit:
    """Run a container until it ends or `stopped` is set, then print stacks, kill and remove it."""
    container = engine.start(spec)
    try:
        output = _OutputRelay(write)
        follower = threading.Thread(target=_follow, args=(engine, container, output), daemon=True)
        follower.start()
        ended = None
        while ended is None and not stopped.is_set():
            ended = engine.wait(container, 0.2)
        if ended is None:
            ended = _stop(engine, container, write)
        # Passing on much output takes longer than printing it, and its last lines say what went wrong.
        while follower.is_alive() and output.quiet_seconds < QUIET_SECONDS:
            follower.join(0.1)
        if follower.is_alive() or output.size > FLOOD_BYTES:
            with contextlib.suppress(HarnessError):
                output.end_with(engine.last_lines(container))
        return ended
    finally:
        _remove(
            engine,
            EngineResource(kind="container", id=container, name=spec.name, labels=spec.labels, created=0.0),
        )


class _OutputRelay:
    """Passes output on and records its size, its end, and the time of the last part."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.size = 0
        self._write = write
        self._end = b""
        self._last = time.monotonic()

    def __call__(self, data: bytes) -> None:
        self._write(data)
        self.size += len(data)
        self._end = (self._end + data)[-END_BYTES:]
        self._last = time.monotonic()

    def end_with(self, last_lines: bytes) -> None:
        """Add the last lines of the output if they were lost because the engine truncated its log."""
        last = last_lines.rstrip().rpartition(b"\n")[2]
        if last and not self._end.rstrip().endswith(last):
            self._write(
                b"\n[output was lost: the container printed faster than the engine reads; last lines:]\n"
                + last_lines
            )

    @property
    def quiet_seconds(self) -> float:
        """Seconds since the last output."""
        return time.monotonic() - self._last


def _stop(engine: Engine, container: str, write: Callable[[bytes], None]) -> ContainerExit:
    write(b"npu-matrix: the time limit is reached; stacks of the Python processes in the container:\n")
    with contextlib.suppress(HarnessError):
        engine.signal(container, "ABRT")
    ended = engine.wait(container, STACK_SECONDS)
    if ended is None:
        engine.signal(container, "KILL")
        ended = engine.wait(container, KILLED_SECONDS)
    return ended or ContainerExit(code=KILLED, out_of_memory=False)


def _follow(engine: Engine, container: str, write: Callable[[bytes], None]) -> None:
    with contextlib.suppress(HarnessError):
        engine.follow(container, write)


def _remove(engine: Engine, resource: EngineResource) -> None:
    """Remove the container; try again for a while, because a daemon may be restarting."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while time.monotonic() <= deadline:
        with contextlib.suppress(HarnessError):
            engine.remove(resource)
            return
        time.sleep(0.5)
    _write(f"npu-matrix: {resource.name} could not be removed; run npu-matrix cleanup\n".encode())


def _container_spec(command: ContainedCommand, environ: Mapping[str, str]) -> ContainerSpec:
    owner, key = this_process(), environ.get("NPU_MATRIX_KEY") or command.cell
    own = {name.removeprefix(PREFIX): value for name, value in environ.items() if name.startswith(PREFIX)}
    devices: tuple[str, ...] = ()
    script = RUN
    if command.has_npu:
        # The cards of the task's lease; a task without a lease gets the cards that the user chose.
        visible = own.get(VISIBLE) or environ.get(VISIBLE, "")
        devices, own[VISIBLE] = card_nodes(visible)
        own[ADDED_PATH] = own.pop("PYTHONPATH", "")
        script = f"{SET_ENV}; set +u; {ADD_PATH}; {RUN}"
    here = str(Path.cwd())
    mounts = [
        Mount(source=Path(path), target=path, writable=writable)
        for path, writable in command.mounts
        # The task's own folder is mounted as a whole.
        if not Path(path).is_relative_to(here)
    ]
    mounts.append(Mount(source=Path(here), target=here, writable=True))
    return ContainerSpec(
        name=f"npu-matrix-{key[:12]}-{owner.pid}-{time.time_ns()}",
        image=command.image,
        argv=(*FIRST_PROCESS, script, "cell", *command.argv),
        env={"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "HOME": "/tmp", "LANG": "C.UTF-8", **own},  # noqa: S108
        labels=make_labels(
            owner=owner,
            expires=time.time() + EXPIRE_SECONDS,
            key=key,
            run=environ.get("NPU_MATRIX_RUN", ""),
            cell=command.cell,
            task=environ.get("NPU_MATRIX_TASK", ""),
        ),
        mounts=tuple(mounts),
        workdir=here,
        user=f"{os.getuid()}:{os.getgid()}",
        groups=node_groups(devices),
        memory_bytes=command.memory_bytes,
        shm_bytes=command.shm_bytes,
        log_bytes=ENGINE_LOG_BYTES,
        devices=devices,
        network="host" if command.has_npu else "none",
    )


def _write(data: bytes) -> None:
    with contextlib.suppress(OSError):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _leave(code: int) -> None:
    """End this program with the exit code, or by the signal that ended the command."""
    sys.stdout.flush()
    number = code - 128
    if number in {
        signal.SIGABRT,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGKILL,
    }:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(code)


def program() -> None:
    """The program that `contained_command` starts."""
    _leave(main(sys.argv[1:]))
