"""Runs the tests of the CPU reference of generation in a separate process.

Importing verl replaces the norms of transformers' models in the whole process by operators that the CPU does not have.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).with_name("rollout_reference.py")


def test_the_reference_in_a_process_that_nothing_has_changed(tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(tmp_path / "own"),
        str(TESTS),
    ]
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run(argv, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    # Packages may warn when they are first imported. Skipped tests would be listed before "passed".
    assert re.search(r"^\d+ passed(, \d+ warnings?)? in", done.stdout, re.MULTILINE), done.stdout[-500:]
