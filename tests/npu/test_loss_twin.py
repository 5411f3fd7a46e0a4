"""Steps of sampling and training on the device beside a float64 twin. Runs inside a cell.

Takes about a minute, so it runs only where NPU_MATRIX_TWIN=1 asks for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.numerics import twin_run
from harness.numerics.case import read_npz
from harness.numerics.twin import compare, judge
from harness.outcome import Status

torch = pytest.importorskip("torch")
pytest.importorskip("verl")

pytestmark = pytest.mark.skipif(
    os.environ.get("NPU_MATRIX_TWIN") != "1", reason="takes a minute; set NPU_MATRIX_TWIN=1"
)
SETTINGS = {"steps": 6}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exact twin, in a process that cannot import torch_npu."""
    file = tmp_path_factory.mktemp("reference") / "twin.npz"
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
    environment.pop("NPU_SIM_FAULTS", None)
    program = [sys.executable, "-m", "harness.numerics.twin_run", "--role", "reference", "--out", str(file)]
    done = subprocess.run(
        [*program, "--case", json.dumps(SETTINGS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return file


def followed(reference: Path, device: str, out: Path) -> dict:
    """Measurements of the twin on the device."""
    facts = twin_run.device(twin_run.case_of(SETTINGS), device, reference, out)
    torch.distributed.destroy_process_group()
    index, _ = read_npz(reference, twin_run.FORMAT)
    return {"state": "measured", **compare(index, facts), "path": facts["path"], "device": facts["device"]}


def test_six_steps_stay_with_their_twin(reference: Path, npu_device: str, tmp_path: Path) -> None:
    judgement = judge(followed(reference, npu_device, tmp_path / "twin.json"), {})
    assert judgement.status is Status.PASS, judgement.reasons
