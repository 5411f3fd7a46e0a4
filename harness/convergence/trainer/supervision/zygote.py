"""Forks Ray's workers from a process that has already imported their common modules.

    python -m harness.convergence.trainer.supervision.zygote SOCKET

A run of verl's trainer starts up to ten workers. If each of them imports torch, transformers and Ray, these
imports are most of the start-up time on two cores. Ray starts a worker with the program that
`runtime_env.py_executable` names; `zygote_client` is a program that requests a fork from this process
instead. verl is not preloaded, because its modules query the device on import. Linux only. In-cell module.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

# None of these modules queries a device or starts a thread on import. Not in the list: transformers' models
# and peft, which count devices once, before Ray has assigned them; pandas, which starts a thread; Ray, which
# reads the cluster's token.
PRELOADED = (
    "numpy",
    "torch",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "tensordict",
    "transformers",
    "omegaconf",
    "codetiming",
    "torchdata.stateful_dataloader",
    "hydra",
    "aiohttp",
    "fastapi",
    "uvicorn",
)
TICK_SECONDS = 0.2
PR_SET_PDEATHSIG = 1
LENGTH_BYTES = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until this process or its parent is killed."""
    (path,) = sys.argv[1:] if argv is None else argv
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with socket.socket(socket.AF_UNIX) as server:
        # Renaming makes the socket visible when it already listens. Until the imports end, clients wait.
        server.bind(f"{path}.new")
        server.listen(64)
        Path(f"{path}.new").rename(path)
        for name in PRELOADED:
            preload(name)
        gc.collect()
        gc.freeze()
        return _serve(server)


def preload(name: str) -> None:
    """Import a module of `PRELOADED`, if this cell has it."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        # The workers of this cell do not need it either.
        sys.stderr.write(f"not preloaded: {error}\n")


def _serve(server: socket.socket) -> int:
    clients: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        while True:
            for _key, _events in selector.select(TICK_SECONDS):
                client, _ = server.accept()
                pid = _fork(server, client, clients)
                clients[pid] = client
            _reap(clients)


def _reap(clients: dict[int, socket.socket]) -> None:
    """Send the exit codes of ended workers to their clients."""
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        client = clients.pop(pid)
        # The client may have ended already.
        with client, contextlib.suppress(BrokenPipeError):
            code = os.waitstatus_to_exitcode(status)
            client.sendall(str(code if code >= 0 else 128 - code).encode())


def _fork(server: socket.socket, client: socket.socket, clients: dict[int, socket.socket]) -> int:
    head, descriptors, _flags, _address = socket.recv_fds(client, LENGTH_BYTES, 3)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size:
        text += client.recv(size - len(text))
    request = json.loads(text)
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    server.close()
    for other in (client, *clients.values()):
        other.close()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os._exit(_become(request["argv"], request["environment"], request["folder"]))


def _become(argv: list[str], environment: dict[str, str], folder: str) -> int:
    """Run the worker's program in this process as Python would."""
    import numpy as np

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Python reseeds `random` after a fork, numpy does not.
    np.random.seed()
    sys.argv = argv
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, str(Path(argv[0]).parent))
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
