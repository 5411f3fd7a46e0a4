"""A pip that this process can run, for what uv does not offer: the list of a package's versions."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.errors import InfrastructureError

_PASSED = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "HOME",
)


def pip_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that affect downloads by pip."""
    return {
        name: value for name, value in environ.items() if name.startswith("PIP_") or name.upper() in _PASSED
    }


def pip_command() -> list[str]:
    """A command that runs some pip. Environments created by uv do not contain pip."""
    for argv in _pip_candidates():
        return argv
    raise InfrastructureError(
        "pip was not found, so upstream releases cannot be downloaded",
        why="this Python has neither pip nor ensurepip",
        fix=f"install it: {sys.executable} -m ensurepip",
    )


def _pip_candidates() -> Iterator[list[str]]:
    if importlib.util.find_spec("pip"):
        yield [sys.executable, "-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    for location in (bundled.submodule_search_locations or []) if bundled else []:
        for wheel in sorted(Path(location).glob("_bundled/pip-*.whl")):
            yield [sys.executable, str(wheel / "pip")]
    program = shutil.which("pip3") or shutil.which("pip")
    if program:
        yield [program]
