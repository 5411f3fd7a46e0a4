"""The program that Ray starts as a worker: `python -I -S zygote_client.py SOCKET PROGRAM ARGUMENTS...`.

It requests a fork from `zygote`, which becomes the worker, with the standard streams, environment and working
directory of this process, and it ends with the worker's exit code. It imports few modules of the standard
library, so that it starts a hundred times faster than a worker.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Request a fork, wait until it ends, and return its exit code."""
    path, *argv = sys.argv[1:]
    # Ray's options for Python concern the module search path, which `zygote` already has.
    while argv[0].startswith("-"):
        del argv[0]
    folder = os.getcwd()  # noqa: PTH109 - importing pathlib takes longer than everything else
    request = {"argv": argv, "environment": dict(os.environ), "folder": folder}
    text = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        socket.send_fds(client, [len(text).to_bytes(8, "big")], [0, 1, 2])
        client.sendall(text)
        exit_code = client.recv(16)
    return int(exit_code or b"1")


if __name__ == "__main__":
    sys.exit(main())
