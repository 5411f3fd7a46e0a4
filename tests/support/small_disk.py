"""A small file system in memory, for tests of full disks."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount an empty file system at `folder`; skip the test where mounting is not permitted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here (only root can)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
