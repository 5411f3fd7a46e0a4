"""Tests inside a cell, with the plugin that users have too. The harness package must be importable there.

python -m pytest tests/npu --npu-device npu:0
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest_plugins = ["harness.fixtures.plugin"]


@pytest.fixture(scope="session")
def reference_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Runs a program's reference role in a process that cannot import torch_npu; gives the file it wrote."""

    def run(program: str, *args: str) -> Path:
        file = tmp_path_factory.mktemp("reference") / "reference.npz"
        environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
        environment.pop("NPU_SIM_FAULTS", None)
        done = subprocess.run(
            [sys.executable, "-m", program, "--role", "reference", "--out", str(file), *args],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return file

    return run
