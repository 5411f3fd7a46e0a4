"""Forks the processes that tests start by `spawn` from one that has imported torch and torch_npu.

Tests of collectives start two or more processes for each comparison, and each would import torch, torch_npu
and the modules of the tests again, which takes seconds of a processor. A server is forked before the tests
run; like a fork server of multiprocessing, it forks each process. The device is not initialised in it. A
forked process gets what a new process of Python has of its own: variables of the environment, the working
folder, random numbers, and the functions that run at its end. A process that needs another environment than
the server had is started by `spawn`, because torch_npu reads variables when it is imported.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing.forkserver as forkserver_module
import os
import random
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import connection, popen_forkserver, popen_spawn_posix, reduction, spawn, util
from multiprocessing.context import set_spawning_popen
from multiprocessing.process import BaseProcess
from typing import Any

#: What programs read when they join a group of processes, after their imports.
READ_LATER = frozenset(
    {
        *("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("GROUP_RANK", "ROLE_RANK", "PYTEST_CURRENT_TEST", "PYTEST_VERSION"),
    }
)
# How a fork server was started, and what it does for each process, have no public names.
_server: Any = forkserver_module._forkserver  # noqa: SLF001
_serve_one: Any = forkserver_module._serve_one  # type: ignore[attr-defined] # noqa: SLF001


def fits(server: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether a process with the environment `now` may be forked from a server that had `server`."""
    changed = {name for name in {*server, *now} if server.get(name) != now.get(name)}
    return changed <= READ_LATER


def install() -> None:
    """Fork the server; from now on this process starts its processes by it. Call it before the tests run."""
    _fork_server()
    owner, before, ordinary = os.getpid(), dict(os.environ), popen_spawn_posix.Popen

    def popen(process: BaseProcess) -> Any:
        # Processes that were started do not have the server.
        warm = os.getpid() == owner and fits(before, os.environ)
        return _WarmPopen(process) if warm else ordinary(process)

    popen_spawn_posix.Popen = popen  # type: ignore[misc, assignment]


def use_environment(variables: Mapping[str, str]) -> None:
    """Give a forked process the variables of the process that wanted it, before it reads anything else."""
    os.environ.clear()
    os.environ.update(variables)


class _Environment:
    """Sets the variables of the process that reads it from a pickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return use_environment, (dict(os.environ),)


class _WarmPopen(popen_forkserver.Popen):
    """A process that the server forks. As in its base class, but it has the environment of this process."""

    def _launch(self, process_obj: BaseProcess) -> None:
        buffer = io.BytesIO()
        set_spawning_popen(self)
        try:
            prepared = spawn.get_preparation_data(process_obj.name)
            reduction.dump({"environment": _Environment(), **prepared}, buffer)
            reduction.dump(process_obj, buffer)
        finally:
            set_spawning_popen(None)
        self.sentinel, write = forkserver_module.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        kept = os.dup(write)
        self.finalizer = util.Finalize(self, _close, (kept, self.sentinel))
        with os.fdopen(write, "wb") as stream:
            stream.write(buffer.getbuffer())
        self.pid = forkserver_module.read_signed(self.sentinel)


def _fork_server() -> None:
    """Fork the server and make it the fork server of this process."""
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        alive_read, alive_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process == 0:
            os.close(alive_write)
            _serve(listener.detach(), alive_read)
    os.close(alive_read)
    started = {"address": address, "alive_fd": alive_write, "pid": process}
    for name, value in started.items():
        setattr(_server, f"_forkserver_{name}", value)


def _serve(listener: int, alive: int) -> None:
    """Serve until all processes that could want a process have ended. Never returns."""
    forkserver_module._serve_one = _serve_as_new  # type: ignore[attr-defined] # noqa: SLF001
    try:
        forkserver_module.main(listener, alive, [])
    finally:
        os._exit(0)


def _serve_as_new(
    request: int, fds: Sequence[int], unused: Sequence[int], handlers: Mapping[int, Any]
) -> int:
    """Run the process that was wanted in this forked one, as if Python had started for it."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    code: int = _serve_one(request, fds, unused, handlers)
    # A fork server ends its processes without these; after `spawn` they run.
    atexit._run_exitfuncs()  # noqa: SLF001
    return code


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
