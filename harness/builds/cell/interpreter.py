"""Finds a Python interpreter of the version that a cell needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.sources.packages.index_settings import uv_binary
from harness.sources.redact import redact_text
from harness.user_folders import exists, home_folder

VERSION_PROGRAM = "import sys; print('%d.%d.%d' % sys.version_info[:3])"
ASK_SECONDS = 20.0
FETCH_SECONDS = 300.0


def find_interpreter(version: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Path and full version of a Python `version` (`3.11` or `3.11.7`); None when this host has none.

    Searches the interpreter of this program, PATH and the usual version managers, in this order. Each
    candidate is started, because a shim of a version manager can exist without its interpreter.
    """
    own = ".".join(map(str, sys.version_info[:3]))
    if _fits(own, version):
        return str(_base_executable()), own
    for candidate in filter(exists, _candidates(version, environ)):
        full = _version_of(candidate)
        if _fits(full, version):
            return str(candidate), full
    return None


def fetch_interpreter(version: str, environ: Mapping[str, str]) -> tuple[str, str] | str:
    """Install a Python with uv, where the machine has none; returns it, or why that failed.

    uv's own settings count, such as UV_PYTHON_INSTALL_MIRROR and UV_PYTHON_DOWNLOADS.
    """
    argv = [uv_binary(), "python", "install", "--no-bin", version]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=FETCH_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return redact_text(lines[-1] if lines else f"uv ended with {done.returncode}")[:300]
    return find_interpreter(version, environ) or "uv installed it, but it cannot be started"


def _fits(full: str, version: str) -> bool:
    return full == version or full.startswith(f"{version}.")


def _base_executable() -> Path:
    """The base interpreter of a virtual environment, which outlives the environment."""
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (Path(sys.base_prefix) / "bin" / minor, Path(sys.base_prefix) / "bin/python3"):
        if candidate.is_file():
            return candidate
    return Path(sys.executable)


def _candidates(version: str, environ: Mapping[str, str]) -> Iterator[Path]:
    name = f"python{'.'.join(version.split('.')[:2])}"
    for entry in environ.get("PATH", os.defpath).split(os.pathsep):
        if entry:
            yield Path(entry) / name
    home = home_folder(environ)
    pyenv = Path(environ.get("PYENV_ROOT") or home / ".pyenv")
    uv_pythons = Path(environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python")
    conda = Path(environ.get("CONDA_PREFIX") or home / "miniconda3")
    for folder, pattern in (
        (pyenv / "versions", f"{version}*"),
        (uv_pythons, f"cpython-{version}.*"),
        (conda / "envs", "*"),
    ):
        for root in sorted(folder.glob(pattern), reverse=True) if exists(folder) else ():
            yield root / "bin" / name


def _version_of(candidate: Path) -> str:
    try:
        done = subprocess.run(
            [str(candidate), "-I", "-c", VERSION_PROGRAM],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
