"""Forks Ray's workers off a process that has imported what they all import: `python -m ... SOCKET`.

A run of verl's trainer starts up to ten workers, each of which imports torch, transformers and Ray anew: on
two cores that is most of its start-up. Ray starts a worker with the program that `runtime_env.py_executable`
names; `zygote_client` is one that asks this process for a fork instead. verl itself is imported by every
worker, as its modules ask at once which device there is. Linux only. In-cell module.
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

# None of these looks for a device or starts a thread when it is imported. What does: transformers' models and
# peft count devices, once for all, before Ray has said which a worker has; pandas starts a thread; Ray reads
# the cluster's token.
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
    """Serve until killed, or until whoever started it is."""
    (path,) = sys.argv[1:] if argv is None else argv
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with socket.socket(socket.AF_UNIX) as server:
        # Who finds the socket finds it listening; until everything is imported, workers wait in its queue.
        server.bind(f"{path}.new")
        server.listen(64)
        Path(f"{path}.new").rename(path)
        for name in PRELOADED:
            preload(name)
        gc.collect()
        gc.freeze()
        return _serve(server)


def preload(name: str) -> None:
    """Import a module of `PRELOADED`, if there is such a one."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        # What this cell has not, its workers will not import.
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
    """Tell clients how their workers ended."""
    while clients:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        client = clients.pop(pid)
        # Whoever asked may be gone.
        with client, contextlib.suppress(BrokenPipeError):
            code = os.waitstatus_to_exitcode(status)
            client.sendall(str(code if code >= 0 else 128 - code).encode())


def _fork(server: socket.socket, client: socket.socket, clients: dict[int, socket.socket]) -> int:
    head, descriptors, _flags, _address = socket.recv_fds(client, LENGTH_BYTES, 3)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size:
        text += client.recv(size - len(text))
    wanted = json.loads(text)
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
    os._exit(_become(wanted["argv"], wanted["environment"], wanted["folder"]))


def _become(argv: list[str], environment: dict[str, str], folder: str) -> int:
    """Run the worker's program in this process as Python would."""
    import numpy as np

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Python's own generator does so by itself.
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
