"""Finds the site-packages of an interpreter or of a folder.

An interpreter is started once, with `-I -S`: nothing of its environment is imported, and `.pth` files, which
can contain code, are not executed. A folder is only read.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.compat.inspection.distributions import (
    Distribution,
    Installation,
    python_of_site,
    read_distributions,
)
from harness.compat.inspection.stated_packages import Inventory, SourceKind, StatedPackage
from harness.errors import InputError, Location

SECONDS = 20.0
#: `import site` under -S defines functions only. Before Python 3.14, -S leaves sys.prefix of the base. For
#: that, Debian's getsitepackages names no folder of a virtual environment.
PROGRAM = r"""
import json, os, platform, site, sys
home, prefixes, system = os.path.dirname(os.path.abspath(sys.executable)), [sys.prefix], True
for folder in (os.path.dirname(home), home):
    file = os.path.join(folder, "pyvenv.cfg")
    if os.path.isfile(file):
        with open(file, encoding="utf-8", errors="replace") as stream:
            pairs = [line.partition("=") for line in stream]
        system = any(k.strip() == "include-system-site-packages" and v.strip() == "true" for k, _, v in pairs)
        prefixes = [folder] + ([sys.base_prefix] if system else [])
        break
prefixes = list(dict.fromkeys(prefixes))
own = [os.path.join(p, "lib", "python%d.%d" % sys.version_info[:2], "site-packages") for p in prefixes]
print(json.dumps({
    "sites": list(dict.fromkeys(own + site.getsitepackages(prefixes))),
    "python": platform.python_version(),
    "arch": platform.machine(),
}))
"""


def default_interpreter(environ: Mapping[str, str]) -> Path:
    """The interpreter of the activated environment, else the one that runs this program."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        candidate = Path(environ.get(variable) or "/nonexistent") / "bin" / "python"
        if candidate.is_file():
            return candidate
    return Path(sys.executable)


def interpreter_installation(interpreter: Path) -> Installation:
    """The environment of an interpreter; InputError if it cannot be started."""
    argv = [str(interpreter), "-I", "-S", "-c", PROGRAM]
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=SECONDS, check=True, env=environment, stdin=subprocess.DEVNULL
        )
        found = json.loads(done.stdout)
        sites, python, arch = found["sites"], str(found["python"]), str(found["arch"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            "this program is not a Python interpreter that can be started",
            where=Location(interpreter),
            why=str(error)[:300],
            fix="pass the interpreter of the environment, for example --python venv/bin/python",
        ) from error
    return Installation(
        sites=_existing(map(Path, sites)), python=python, arch=arch, where=f"environment of {interpreter}"
    )


def folder_installation(folder: Path) -> Installation:
    """The environment in a folder: a virtual environment, or a site-packages folder. InputError if none."""
    candidates = [folder, *sorted(folder.glob("lib*/python3.*/site-packages"))]
    sites = _existing(path for path in candidates if next(path.glob("*.dist-info"), None))
    if not sites:
        raise InputError(
            "this folder has no installed packages",
            where=Location(folder),
            why="neither it nor lib/python3.*/site-packages in it has a .dist-info folder",
            fix="name a virtual environment or a site-packages folder, or use --python INTERPRETER",
        )
    python = next(filter(None, map(python_of_site, (path.absolute() for path in sites))), "")
    return Installation(sites=sites, python=python, arch=platform.machine(), where=f"folder {folder}")


def _existing(folders: Iterable[Path]) -> tuple[Path, ...]:
    found: dict[str, Path] = {}
    for folder in folders:
        if folder.is_dir():
            found.setdefault(os.path.realpath(folder), folder)
    return tuple(found.values())


def installed_inventory(
    installation: Installation, kind: SourceKind
) -> tuple[Inventory, tuple[Distribution, ...]]:
    """The packages of an environment. The first of several with one name counts, as when it is imported."""
    distributions = tuple(read_distributions(installation.sites))
    packages: dict[str, StatedPackage] = {}
    unread: list[str] = []
    for one in distributions:
        if one.name in packages:
            if packages[one.name].version != one.version:
                unread.append(f"{one.name} is installed twice: {packages[one.name].version}, {one.version}")
            continue
        packages[one.name] = StatedPackage(
            name=one.name, version=one.version, commit=one.commit, where=str(one.folder)
        )
        if one.editable:
            unread.append(f"{one.name} is installed in editable mode: its files were not compared")
    inventory = Inventory(
        kind=kind,
        where=installation.where,
        packages=packages,
        python=installation.python,
        arch=installation.arch,
        unread=tuple(unread),
    )
    return inventory, distributions
