"""Runs torch_npu's own code for a call, without computing anything, to find out whether it refuses the call.

This process is forked before the simulated device's kernels are installed, so that torch_npu is complete in
it. Operators of CANN succeed in it and do nothing (`npu_sim_dry` in the runtime). Each client gets a process
of its own, forked from this one: a call with arbitrary numbers may crash or hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import socket
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from harness.devices.sim.operators.torch_internals import DEVICE_KEY, call_kernel, overload
from harness.devices.sim.refusals.call_form import CallSpec, arguments_of
from harness.devices.sim.runtime_build.cann_toolkit import CHECKS_FOLDER, CHECKS_LIBRARY
from harness.evidence import RUNTIME_LIBRARY, runtime_library

LIMIT_S = 10
BASE_FORMATS = frozenset({0, 1, 2, 27, 30, 35, 47})

# Errors that say nothing about the call: CANN has no such function, or it reported an error. A message with a
# version of CANN says something about the call if it names a value that it got. A number of elements
# overflows where a kernel that did nothing left a size undefined (`npu_nms_rotated`).
_OF_THE_RUNTIME = re.compile(
    r"not in lib\w*opapi|libopapi\.so ?not found|Get(?:Op)?ApiFuncAddr|aclnn\w+ failed|call acl\w+ failed"
    r"|CreateOperation failed|error code is \d{6}|ERR\d\d(?:100|004|005|006|007|008)\b"
    r"|numel: integer multiplication overflow"
    r"|(?:cann|CANN) version(?!.*\bbut (?:now is|got)\b)"
)


@dataclass(frozen=True)
class Refused:
    """What torch_npu raised. error: the name of the exception's class."""

    error: str
    message: str


@dataclass(frozen=True)
class Unknown:
    """The call could not be verified. why: in a few words."""

    why: str


Answer = Refused | Unknown | None
"""None: torch_npu's code accepts the call."""


def serve(server: socket.socket, lifetime: int) -> None:
    """Serve clients until the pipe `lifetime` is closed. Never returns."""
    path = Path(server.getsockname())
    _leave_the_program()
    # The kernel removes the processes of clients when they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with contextlib.suppress(BaseException):
        while lifetime not in wait([server, lifetime]):
            client, _address = server.accept()
            if not os.fork():
                server.close()
                os.close(lifetime)
                with contextlib.suppress(BaseException):
                    _answer(Connection(client.detach()))
                os._exit(0)
            client.close()
    with contextlib.suppress(OSError):
        path.unlink()
        path.parent.rmdir()
    os._exit(0)


def _leave_the_program() -> None:
    """Close what the program waits for: its standard streams. Write no core files, and handle no signals."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGABRT, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


def _answer(client: Connection) -> None:
    reads = make_dry()
    while True:
        try:
            spec = client.recv()
        except EOFError:
            return
        signal.alarm(LIMIT_S)
        client.send(verify(spec, reads))
        signal.alarm(0)


def make_dry() -> Any:
    """Let the operators of CANN do nothing in this process. Returns the runtime's counter of reads."""
    runtime = runtime_library()
    assert runtime is not None
    ctypes.c_int.in_dll(runtime, "npu_sim_dry").value = 1
    maps = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    loaded = next(Path(line.split(maxsplit=5)[5]) for line in maps if line.endswith("/" + RUNTIME_LIBRARY))
    checks = ctypes.CDLL(str(loaded.parent / CHECKS_FOLDER / CHECKS_LIBRARY))
    if not checks.npu_sim_lead_lookups_here():
        # torch_npu would not find the operators and could refuse what it accepts.
        raise RuntimeError("the lookups of torch_npu cannot be led to the operators that do nothing")
    return ctypes.c_int.in_dll(runtime, "npu_sim_reads")


def verify(spec: CallSpec, reads: Any) -> Answer:
    """Whether torch_npu's code refuses the call, which is made with other numbers."""
    namespace, _, name = spec.name.partition("::")
    operator = overload(namespace, name)
    if operator is None:
        return Unknown("not in this torch_npu")
    try:
        args, kwargs = arguments_of(spec, BASE_FORMATS)
    except Exception as error:  # noqa: BLE001 - whatever it is, the call was not made
        return _of_memory(error) or Unknown(f"cannot be repeated: {type(error).__name__}")
    reads.value = 0
    try:
        with torch.no_grad():
            call_kernel(operator, DEVICE_KEY, *args, **kwargs)
    except Exception as error:  # noqa: BLE001 - every exception is a possible refusal
        return classified(error, was_read=bool(reads.value))
    return None


def classified(error: Exception, *, was_read: bool) -> Answer:
    """What an exception of torch_npu's kernel means. was_read: whether it read numbers of the device."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return None  # The device itself says that its memory is exhausted.
    if was_read:
        return Unknown("it depends on numbers")
    if _OF_THE_RUNTIME.search(text) or type(error) is TypeError:
        return Unknown("CANN decides")
    return Refused(type(error).__name__, text)


def _of_memory(error: Exception) -> Answer:
    return Unknown("memory") if isinstance(error, torch.OutOfMemoryError) else None
