"""Finds and runs the C compiler that builds the simulated runtime."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import InfrastructureError, InputError

COMPILER_NAMES = ("cc", "gcc", "clang")
_TIMEOUT_S = 300
_OUTPUT_LINES = 12


def find_compiler(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The command of a C compiler: `CC`, otherwise the system's, otherwise the one in the wheel `ziglang`.

    InfrastructureError when there is none, or if CC is no command.
    """
    environ = os.environ if environ is None else environ
    try:
        command = shlex.split(environ.get("CC", ""))
    except ValueError as error:
        raise InfrastructureError(
            f"the variable CC is not a command: {environ['CC']!r}",
            why=str(error),
            fix="set it to the command of a C compiler, or unset it",
        ) from error
    if command and shutil.which(command[0], path=environ.get("PATH")):
        return tuple(command)
    for name in COMPILER_NAMES:
        if program := shutil.which(name, path=environ.get("PATH")):
            return (program,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc")
    raise InfrastructureError(
        "no C compiler was found",
        why="the simulated CANN runtime is written in C and compiled at its first use",
        fix=f"install gcc or clang, or `{sys.executable} -m pip install ziglang`",
    )


def require_function_name(name: str, package: str) -> None:
    """InputError unless a symbol that a library of `package` needs is a valid name of a C function."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise InputError(
            f"{package} needs a symbol that cannot be a C function: {name!r}",
            why=f"a library of the installed {package} lists it as an undefined symbol",
            fix=f"install {package} again; its library is damaged or not supported",
        )


def compile_library(
    compiler: Sequence[str], sources: Sequence[Path], output: Path, version_script: Path | None = None
) -> None:
    """Compile and link `sources` into the shared library `output`, whose soname is its file name.

    version_script: a linker script that assigns versions to symbols. InfrastructureError with the last lines
    of the compiler's output when it fails.
    """
    command = [
        *compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-pthread",
        "-fvisibility=hidden",
        f"-Wl,-soname,{output.name}",
        *((f"-Wl,--version-script={version_script}",) if version_script else ()),
        "-o",
        str(output),
        *map(str, sources),
    ]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        raise _compiler_error(f"{compiler[0]!r} cannot be started", str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise _compiler_error(f"{compiler[0]!r} did not finish within {_TIMEOUT_S} s") from error
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-_OUTPUT_LINES:])
        what = f"{' '.join(compiler)} failed with exit code {done.returncode}"
        raise _compiler_error(what, tail or "it printed nothing")


def _compiler_error(what: str, why: str = "") -> InfrastructureError:
    return InfrastructureError(f"the C compiler {what}", why=why, fix="set CC to a working compiler")
