"""Runs git in a checkout: without its variables, without fetching, and never for longer than a limit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness.errors import InfrastructureError

_TIMEOUT_S = 120


def run_git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run git in `root`; its exit status is not checked. InfrastructureError if it cannot run."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "--no-replace-objects", "-C", str(root), *arguments],  # noqa: S607 - the git of the PATH
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
            env={**inherited, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1"},
        )
    except OSError as error:
        raise InfrastructureError("git cannot be started", why=str(error), fix="install git") from error
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"git {arguments[0]} did not finish within {_TIMEOUT_S} s") from error
