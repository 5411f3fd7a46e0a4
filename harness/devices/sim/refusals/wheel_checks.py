"""Verifies calls of operators by torch_npu's own code, before the simulated device computes them."""

from __future__ import annotations

import builtins
import contextlib
import os
import re
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from harness.cell_program.torch_device import package_version
from harness.devices.sim.refusals.call_form import NoFormError, TracedError, key_of, spec_of
from harness.devices.sim.refusals.check_server import Answer, Refused, Unknown, serve
from harness.digest import digest_json

SOCKET_VARIABLE = "NPU_SIM_CHECKS"
"""The socket of the process that verifies, for all processes of a program, and a digest of its device."""

MOST_CALLS = 10_000
"""Calls of one operator that are remembered."""

PATIENCE_S = 60
IDLE_THREADS = 2
ACL_ND = 2
_CONFIGURED = ("NPU_SIM_SOC", "NPU_SIM_CANN", "NPU_SIM_COUNT", "NPU_SIM_MEMORY_GB")
_MARK = "refused_by_torch_npu"

Kernel = Callable[..., Any]


class WheelChecks:
    """Verifies calls through the process that listens at the socket `path`; without one, nothing is verified.

    note: called once with each operator for which it is unknown whether a call is refused; with None if that
    is unknown for all operators.
    """

    def __init__(self, path: str | None, note: Callable[[str | None], None]) -> None:
        self._path = path or ""
        self._note = note
        self._connection: Connection | None = None
        self._owner = 0
        self._lock = threading.Lock()
        self._unknown: set[str] = set()
        self._is_lost = path is None
        os.register_at_fork(after_in_child=self._after_fork)
        if self._is_lost:
            note(None)

    @property
    def permissive(self) -> Sequence[str] | None:
        """The operators called so far for which it is unknown what is refused; None: all."""
        return None if self._is_lost else sorted(self._unknown)

    def checked(self, name: str, kernel: Kernel) -> Kernel:
        """The kernel of an operator, which first raises torch_npu's error if torch_npu refuses the call."""
        accepted: set[Any] = set()

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                key = key_of(args, kwargs)
            except TracedError:
                return kernel(*args, **kwargs)
            except NoFormError:
                self.pass_over(name)
                return kernel(*args, **kwargs)
            if key not in accepted:
                self._verify(name, args, kwargs)
                if len(accepted) >= MOST_CALLS:
                    accepted.clear()
                accepted.add(key)
            return kernel(*args, **kwargs)

        return run

    def unchecked(self, name: str, kernel: Kernel) -> Kernel:
        """The kernel of an operator that cannot be verified, which notes that it was called."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self.pass_over(name)
            return kernel(*args, **kwargs)

        return run

    def pass_over(self, name: str) -> None:
        """Note that an operator was called without verification."""
        if name not in self._unknown and not self._is_lost:
            self._unknown.add(name)
            self._note(name)

    def _verify(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if self._is_lost or name in self._unknown:
            return
        answer = self._ask(name, args, kwargs)
        if isinstance(answer, Refused):
            raise _error(answer)
        if isinstance(answer, Unknown):
            self.pass_over(name)

    def _ask(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
        spec = spec_of(name, args, kwargs, _format_of)
        with self._lock:
            try:
                connection = self._connected()
            except OSError:
                return self._lose()
            try:
                connection.send(spec)
                if not connection.poll(PATIENCE_S):
                    return self._lose()
                answer: Answer = connection.recv()
            except (OSError, EOFError):
                # It crashed or hung. The next call gets another process.
                self._disconnect()
                return Unknown("crashed")
            return answer

    def _lose(self) -> Answer:
        """From now on, verify nothing, and say so: every call counts as accepted."""
        self._is_lost = True
        self._disconnect()
        self._note(None)
        return None

    def _connected(self) -> Connection:
        if self._connection is None or self._owner != os.getpid():
            client = socket.socket(socket.AF_UNIX)
            client.connect(self._path)
            self._connection = Connection(client.detach())
            self._owner = os.getpid()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _after_fork(self) -> None:
        # Another thread may have held the lock.
        self._lock = threading.Lock()
        self._disconnect()


def start_checks(note: Callable[[str | None], None]) -> WheelChecks:
    """Connect to the process that verifies for this program, or fork it if this is the program's first.

    Call it when torch_npu was imported and its kernels are not yet replaced. A process with several threads
    is not forked; then nothing can be verified.
    """
    path, _, configuration = os.environ.get(SOCKET_VARIABLE, "").partition(":")
    found: str | None = path
    if configuration != _configuration() or not Path(path).exists():
        # More threads may hold locks. torch 2.7 starts one that only waits for its compiler.
        found = _fork_server() if threading.active_count() <= IDLE_THREADS else None
    return WheelChecks(found, note)


def _fork_server() -> str:
    path = str(Path(tempfile.mkdtemp(prefix="npu-sim-")) / "s")
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    ours, alive = os.pipe()
    with warnings.catch_warnings():
        # Python warns about forks of processes with threads. There is one.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        os.close(alive)
        with contextlib.suppress(BaseException):
            # Forked again, so that the program does not find a child that it did not start.
            if not os.fork():
                serve(server, ours)
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(ours)
    server.close()
    os.environ[SOCKET_VARIABLE] = f"{path}:{_configuration()}"
    # `alive` stays open until this process and those that it forks have ended.
    return path


def _configuration() -> str:
    """What the process that verifies must have in common with this one: the packages and the device."""
    parts = [sys.prefix, package_version("torch-npu"), *(os.environ.get(name, "") for name in _CONFIGURED)]
    return digest_json(parts)[:16]


def _format_of(tensor: torch.Tensor) -> int:
    # Complex numbers have no private format. The operator would copy a lazily conjugated tensor first.
    return ACL_ND if tensor.is_complex() else int(torch.ops.npu.get_npu_format(tensor))


def _error(answer: Refused) -> Exception:
    kind: Any = getattr(builtins, answer.error, None) or getattr(torch, answer.error, RuntimeError)
    message = re.sub(r"\(PID:\d+", f"(PID:{os.getpid()}", answer.message)
    error: Exception = kind(message)
    setattr(error, _MARK, True)
    return error


def was_refused(error: Exception) -> bool:
    """Whether the exception is one of torch_npu that `WheelChecks` raised."""
    return getattr(error, _MARK, False) is True
