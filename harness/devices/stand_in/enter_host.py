"""Mounts a stand-in host in this process's mount namespace, then replaces the process by a command.

    unshare --mount [--user --map-root-user] python -m harness.devices.stand_in.enter_host FOLDER COMMAND...

`host_tree.py` wrote FOLDER. Nothing outside of the namespace sees the mounts, and they end with its last
process. Overlays take their changes in memory; only the files of the stand-in itself can be changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.devices.stand_in.host_tree import ASCEND, NODES, OVER, PCI
from harness.errors import EXIT_INCOMPLETE, InfrastructureError, Location

# From linux/mount.h.
_BIND, _RECURSIVE, _PRIVATE, _REMOUNT, _READ_ONLY = 0x1000, 0x4000, 0x40000, 0x20, 0x1
_DETACH = 2
_DEV = Path("/dev")
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_LIBC = ctypes.CDLL(None, use_errno=True)


def unshare_command(folder: Path, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` on the stand-in host in `folder`.

    InfrastructureError if this machine cannot make mount namespaces.
    """
    program = shutil.which("unshare")
    if program is None:
        raise InfrastructureError(
            "this machine cannot make a stand-in host",
            why="there is no program `unshare`",
            fix="install util-linux",
        )
    user = () if os.getuid() == 0 else ("--user", "--map-root-user")
    enter = [sys.executable, "-m", __name__, str(folder)]
    return [program, "--mount", *user, *enter, *command]


def mount_host(folder: Path) -> None:
    """Mount the files of the stand-in in this namespace. OSError if a file is missing or a mount refused.

    Folders of this machine are mounted below a working folder meanwhile. Therefore nothing here is ever
    removed recursively: that would delete the files of the machine.
    """
    nodes = json.loads((folder / NODES).read_text("utf-8"))
    for part in (*OVER, ASCEND, PCI):
        next((folder / part).iterdir(), None)
    # Mounts must not spread to the namespace outside.
    _mount("none", Path("/"), flags=_RECURSIVE | _PRIVATE)
    work = Path(tempfile.mkdtemp(prefix="stand-in-"))
    try:
        _mount("tmpfs", work, kind="tmpfs")
        for part in OVER:
            _lay_over(Path("/") / part, folder / part, work / part.replace("/", "-"))
        _mount(str(folder / ASCEND), Path("/usr/local/Ascend"), flags=_BIND)
        _replace_dev(nodes, work / "dev")
        if _PCI_DEVICES.is_dir():
            _mount(str(folder / PCI), _PCI_DEVICES, flags=_BIND)
    finally:
        # The mounts on top keep what they use. rmdir removes an empty folder only.
        _LIBC.umount2(os.fsencode(work), _DETACH)
        with contextlib.suppress(OSError):
            work.rmdir()


def _lay_over(target: Path, files: Path, work: Path) -> None:
    """Show `files` in the folder `target` in addition to its own, also what is mounted below it."""
    before, upper, inner = work / "before", work / "upper", work / "work"
    for part in (before, upper, inner):
        part.mkdir(parents=True)
    mounted = [path for path in _mount_points() if path != target and path.is_relative_to(target)]
    _mount(str(target), before, flags=_BIND | _RECURSIVE)
    _mount("none", before, flags=_BIND | _REMOUNT | _READ_ONLY)
    options = f"lowerdir={files}:{before},upperdir={upper},workdir={inner}"
    _mount("stand-in", target, kind="overlay", data=options)
    for path in mounted:
        _mount(str(before / path.relative_to(target)), path, flags=_BIND | _RECURSIVE)


def _replace_dev(nodes: Iterable[str], work: Path) -> None:
    """A /dev with the entries of this machine's and with further device nodes, which are /dev/null."""
    work.mkdir()
    _mount("tmpfs", work, kind="tmpfs", data="mode=755")
    for entry in sorted(_DEV.iterdir()):
        place = work / entry.name
        if entry.is_symlink():
            place.symlink_to(entry.readlink())
            continue
        if entry.is_dir():
            place.mkdir()
        else:
            place.touch()
        _mount(str(entry), place, flags=_BIND | _RECURSIVE)
    for name in nodes:
        (work / name).touch()
        _mount(str(_DEV / "null"), work / name, flags=_BIND)
    _mount(str(work), _DEV, flags=_BIND | _RECURSIVE)


def _mount_points() -> list[Path]:
    """Where something is mounted, outer folders first. See proc_pid_mountinfo(5)."""
    lines = Path("/proc/self/mountinfo").read_text("utf-8").splitlines()
    # The kernel escapes spaces and backslashes as octal numbers.
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [Path(point) for point in sorted(set(points))]


def _mount(source: str, target: Path, *, kind: str = "", flags: int = 0, data: str = "") -> None:
    arguments = (source, os.fspath(target), kind, data)
    encoded = [os.fsencode(text) if text else None for text in arguments]
    if _LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]):
        raise _failure(f"mount {kind or source} on {target}")


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)


def main(arguments: Sequence[str]) -> int:
    """Mount the host and run the command; returns only if that fails."""
    folder, command = Path(arguments[0]).absolute(), list(arguments[1:])
    try:
        mount_host(folder)
        os.execvp(command[0], command)  # noqa: S606 - the command takes the place of this program
    except OSError as error:
        problem = InfrastructureError(
            "the stand-in host cannot be set up on this machine",
            where=Location(folder),
            why=f"{error.filename}: {error.strerror}",
            fix="run as root with the right to mount (in a container: --privileged), or on a kernel with "
            "user namespaces and overlayfs",
        )
        print(f"error: {problem}", file=sys.stderr)
    return EXIT_INCOMPLETE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
