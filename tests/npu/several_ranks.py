"""Runs a program as two ranks on the simulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.devices.sim.start.sim_environment import LAUNCHER

RANKS = 2


def results_of_ranks(text: str, folder: Path, faults: str = "") -> list[Any]:
    """The JSON in the last line that each rank prints. The program gets its rank and the path of a store."""
    program = folder / "program.py"
    program.write_text(text)
    ranks = [
        subprocess.Popen(
            [sys.executable, *LAUNCHER, str(program), str(rank), str(folder / "store")],
            env={**os.environ, "NPU_SIM_FAULTS": faults},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    printed = [rank.communicate(timeout=240)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    return [json.loads(one.splitlines()[-1]) for one in printed]
