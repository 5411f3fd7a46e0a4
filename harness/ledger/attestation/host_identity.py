"""Identifies this machine, so that a ledger that was copied from another machine is recognised."""

from __future__ import annotations

import functools
import socket
import uuid
from pathlib import Path

from harness.digest import digest_bytes

#: The files in which Linux keeps the id of a machine.
MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


@functools.cache
def host_fingerprint() -> str:
    """A digest that identifies this machine: of its machine id, else of its host name and network address.

    It is no secret, and copies of a virtual machine share it: it recognises a ledger that was copied by
    mistake, not one that was edited.
    """
    return digest_bytes(f"npu-matrix host {_machine_id(MACHINE_ID_FILES)}".encode())


def _machine_id(files: tuple[Path, ...]) -> str:
    for file in files:
        try:
            text = file.read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        # systemd writes "uninitialized" into images whose machines have no id yet.
        if len(text) == 32:
            return text
    return f"{socket.gethostname()} {uuid.getnode():x}"
