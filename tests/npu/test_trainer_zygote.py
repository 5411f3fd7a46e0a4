"""The process from which Ray workers are forked has one thread and has not queried devices.

Ray decides later which devices a worker can see.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

pytestmark = pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device")

PRELOADED = "-- preloaded --"
PROGRAM = f"""
import sys
from pathlib import Path
from harness.convergence.trainer.supervision import zygote

for name in zygote.PRELOADED:
    zygote.preload(name)
print(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Threads")))
print("{PRELOADED}", file=sys.stderr, flush=True)
import torch, torch_npu
torch.npu.device_count()
"""


def test_what_is_preloaded_starts_no_thread_and_looks_for_no_device():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "NPU_SIM_TRACE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    # torch_npu prints after it.
    assert done.stdout.split()[:2] == ["Threads:", "1"]
    before, _, after = done.stderr.partition(PRELOADED)
    assert "[npu-sim] aclrt" in after, "the runtime traces nothing"
    assert "aclrt" not in before, before
