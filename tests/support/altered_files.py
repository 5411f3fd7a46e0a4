"""Changes of the files that a built environment consists of. Each can be undone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.cell_program.built_environment import EnvironmentBuilt


class Altered:
    """A change of a file of the environment, which can be undone."""

    def __init__(self, find: Callable[[EnvironmentBuilt], Path], change: Callable[[Path], object]) -> None:
        self.find, self.change = find, change

    @contextmanager
    def made(self, built: EnvironmentBuilt) -> Iterator[Path]:
        path = self.find(built)
        link = path.readlink() if path.is_symlink() else None
        status = path.stat() if path.exists() else None
        data = path.read_bytes() if status and not link else b""
        self.change(path)
        try:
            yield path
        finally:
            if link:
                path.unlink()
                path.symlink_to(link)
            elif status is None:
                path.unlink()
            else:
                path.write_bytes(data)
                path.chmod(status.st_mode)
                # With another time, Python compiles a module again.
                os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def in_packages(name: str) -> Callable[[EnvironmentBuilt], Path]:
    return lambda built: Path(built.site_packages) / name


def edit_unseen(path: Path) -> None:
    """Keep the size and the times."""
    status, data = path.stat(), path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def compiled(built: EnvironmentBuilt) -> Path:
    return next(Path(built.site_packages).glob("verl/__pycache__/*.pyc"))


def point_elsewhere(path: Path) -> None:
    target = path.resolve()
    path.unlink()
    path.symlink_to(f"{target.parent}/./{target.name}")


def manifest_of(built: EnvironmentBuilt) -> Path:
    assert built.files is not None
    return Path(built.files.manifest)


def host_library(built: EnvironmentBuilt) -> Path:
    """A library of this host that the environment loads."""
    assert built.libraries is not None
    stored = Path(built.libraries.manifest).read_text().splitlines()[-1]
    return next(Path(path) for path in json.loads(stored) if path.endswith("libascendcl.so"))


def standard_library(built: EnvironmentBuilt) -> Path:
    interpreter = (Path(built.prefix) / "bin/python").resolve()
    return interpreter.parent.parent / "lib" / interpreter.name


def redirection(built: EnvironmentBuilt) -> Path:
    """A file that lets Python import from elsewhere."""
    interpreter = (Path(built.prefix) / "bin/python").resolve()
    return interpreter.with_name(f"{interpreter.name}._pth")


ALTERED = {
    "installed file": Altered(in_packages("torch/__init__.py"), edit_unseen),
    "metadata": Altered(
        lambda built: next(Path(built.site_packages).glob("verl-*.dist-info/RECORD")), edit_unseen
    ),
    "added module": Altered(in_packages("verl/extra.py"), Path.touch),
    "added path file": Altered(in_packages("extra.pth"), lambda path: path.write_text("import os")),
    "removed module": Altered(in_packages("verl/__init__.py"), Path.unlink),
    "compiled module": Altered(compiled, edit_unseen),
    "installed library": Altered(in_packages("torch_npu/lib/libtorch_npu.so"), edit_unseen),
    "interpreter": Altered(lambda built: Path(built.prefix) / "bin/python", point_elsewhere),
    "standard library": Altered(lambda built: standard_library(built) / "random.py", edit_unseen),
    "redirected interpreter": Altered(redirection, Path.touch),
    "device library": Altered(lambda built: Path(built.runtime) / "libascendcl.so", edit_unseen),
    "CANN": Altered(lambda built: next(Path(built.runtime).glob("toolkit/*/bin/npu-smi")), edit_unseen),
    "device library of the host": Altered(host_library, edit_unseen),
    "CANN of the host": Altered(lambda built: host_library(built).parents[1] / "version.info", edit_unseen),
    "list of files": Altered(manifest_of, edit_unseen),
}

#: These are also used by everything else on the host, unless a test has an interpreter and a CANN of its own.
OF_THE_HOST = (
    "standard library",
    "redirected interpreter",
    "device library of the host",
    "CANN of the host",
)
