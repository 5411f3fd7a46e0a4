"""The CPU reference of generation, in a process of its own: where verl is imported, it is no reference.

verl replaces the norms of transformers' models for the whole process, by operators that the CPU does not have.
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
    # Packages that are imported for the first time may warn; a test that was skipped would be told before.
    assert re.search(r"^\d+ passed(, \d+ warnings?)? in", done.stdout, re.MULTILINE), done.stdout[-500:]
