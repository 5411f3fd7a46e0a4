"""Wraps a command line so that it runs in a container of the cell's image."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from harness.builds.engines.container_run import PREFIX, ContainedCommand
from harness.cell_program.built_environment import CellContainer
from harness.devices.cards.driver_files import driver_files
from harness.package import IMPORT_ROOT
from harness.serialisation import dumps
from harness.settings import MEMORY_VARIABLE, parse_size

SHM_VARIABLE = "NPU_MATRIX_CELL_SHM"
# Docker's default of 64 MiB is too small for one torch DataLoader. Unused pages cost nothing.
DEFAULT_SHM = "8g"
# Variables that define how to connect to the engine. A task gets only those user variables that it needs.
CONNECTION = (
    "DOCKER_HOST",
    "CONTAINER_HOST",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
    "XDG_RUNTIME_DIR",
)
ENTRY = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from harness.builds.engines.container_run import program; program()"
)
WITHOUT_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def contained_command(
    container: CellContainer,
    argv: Sequence[str],
    variables: Mapping[str, str],
    *,
    needed: Iterable[Path],
    has_npu: bool,
    environ: Mapping[str, str] = os.environ,
) -> tuple[list[str], dict[str, str]]:
    """A command for this host that runs `argv` with `variables` in a container of the cell's image.

    needed: folders of this host that the command reads; files of this host that `argv` names are mounted too.
    All of them have the same path inside and outside. has_npu: pass the cards of the task into the container.
    InputError when a memory limit in `environ` is not a size.
    """
    mounts = {str(path): False for path in (*needed, *_existing_paths(argv))}
    # Only the probe of an image stores compiled modules. Later programs must not change them.
    mounts[container.bytecode] = not variables.get(WITHOUT_BYTECODE, "1")
    outermost = _outermost(mounts)
    if has_npu:
        outermost += [(path, False) for path in driver_files()]
    command = ContainedCommand(
        engine=container.engine,
        image=container.image,
        cell=container.cell,
        argv=tuple(argv),
        mounts=tuple(outermost),
        memory_bytes=parse_size(environ.get(MEMORY_VARIABLE, "0"), MEMORY_VARIABLE),
        shm_bytes=parse_size(environ.get(SHM_VARIABLE, DEFAULT_SHM), SHM_VARIABLE),
        has_npu=has_npu,
    )
    inside = {WITHOUT_BYTECODE: "1", **variables, "PYTHONPYCACHEPREFIX": container.bytecode}
    program = [sys.executable, "-c", ENTRY, str(IMPORT_ROOT), dumps(command)]
    # Not among the arguments, which every user of this host can read: an address can contain a password.
    connection = {name: environ[name] for name in CONNECTION if name in environ}
    return program, {**connection, **{PREFIX + name: value for name, value in inside.items()}}


def _existing_paths(argv: Sequence[str]) -> list[Path]:
    """Files and folders of this host that a command names, without the program itself."""
    paths = [Path(word) for word in argv[1:] if word.startswith("/")]
    return [path for path in paths if path.exists() and len(path.parts) > 2]


def _outermost(mounts: Mapping[str, bool]) -> list[tuple[str, bool]]:
    """The mounts, except those below another mount with the same access."""
    outermost: list[tuple[str, bool]] = []
    for path, writable in sorted(mounts.items()):
        above = [
            other for other, rights in outermost if rights == writable and Path(path).is_relative_to(other)
        ]
        if not above:
            outermost.append((path, writable))
    return outermost
