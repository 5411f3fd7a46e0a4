"""The command line that runs another one in a cell's container."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.builds.engines.container_run import PREFIX
from harness.devices.cards.device_nodes import driver_files
from harness.errors import InputError
from harness.package import IMPORT_ROOT

MEMORY_VARIABLE, SHM_VARIABLE = "NPU_MATRIX_CELL_MEMORY", "NPU_MATRIX_CELL_SHM"
# Docker gives 64 MiB, which one loader of torch exceeds; pages that nobody writes cost nothing.
DEFAULT_SHM = "8g"
# How the engine is reached; programs of a task get no other variables of the user's than they need.
CONNECTION = (
    "DOCKER_HOST",
    "CONTAINER_HOST",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
    "XDG_RUNTIME_DIR",
)
UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
ENTRY = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from harness.builds.engines.container_run import program; program()"
)


def contained_command(
    container: Mapping[str, Any],
    argv: Sequence[str],
    variables: Mapping[str, str],
    *,
    needed: Iterable[Path],
    device: Mapping[str, Any],
    environ: Mapping[str, str] = os.environ,
) -> tuple[list[str], dict[str, str]]:
    """`argv` with `variables`, as a command of this host that runs it in the container's image.

    container: what the check `environment` measured: engine, image, cell, and the folder `bytecode`, which
    holds compiled modules of that image. needed: folders of this host the command reads; files of this host
    that `argv` names come along. They all lie where they lie here. InputError for a limit that is no size.
    """

    mounts = {str(path): False for path in (*needed, *_named(argv))}
    bytecode = str(container["bytecode"])
    mounts[bytecode] = True
    real = device["kind"] == "npu"
    order = {
        "engine": container["engine"],
        "connect": {name: environ[name] for name in CONNECTION if name in environ},
        "image": container["image"],
        "cell": container["cell"],
        "argv": list(argv),
        "mounts": [[path, writable] for path, writable in _outermost(mounts)],
        "memory_bytes": parse_size(environ.get(MEMORY_VARIABLE, "0"), MEMORY_VARIABLE),
        "shm_bytes": parse_size(environ.get(SHM_VARIABLE, DEFAULT_SHM), SHM_VARIABLE),
        "npu": real,
        "network": "host" if real else "none",
    }
    if real:
        order["mounts"] += [[path, False] for path in driver_files()]
    inside = {**variables, "PYTHONPYCACHEPREFIX": bytecode}
    root = str(IMPORT_ROOT)
    command = [sys.executable, "-c", ENTRY, root, json.dumps(order)]
    return command, {PREFIX + name: value for name, value in inside.items()}


def parse_size(text: str, name: str) -> int:
    """Bytes in `0`, `512m`, `8g`; InputError for anything else."""
    number, unit = text.strip().lower().removesuffix("b"), ""
    if number and number[-1] in UNITS:
        number, unit = number[:-1], number[-1]
    if not number.isdecimal():
        raise InputError(
            f"{name} is {text!r}, which is no size", fix="write it like 512m or 8g; 0 means no limit"
        )
    return int(number) * UNITS[unit]


def _named(argv: Sequence[str]) -> list[Path]:
    """Files and folders of this host that a command names; the cell's own programs are not among them."""
    paths = [Path(word) for word in argv[1:] if word.startswith("/")]
    return [path for path in paths if path.exists() and len(path.parts) > 2]


def _outermost(mounts: Mapping[str, bool]) -> list[tuple[str, bool]]:
    """Without what another mount brings along with the same rights."""
    kept: list[tuple[str, bool]] = []
    for path, writable in sorted(mounts.items()):
        above = [other for other, rights in kept if rights == writable and Path(path).is_relative_to(other)]
        if not above:
            kept.append((path, writable))
    return kept
