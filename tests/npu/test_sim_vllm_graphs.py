"""vLLM's engine in graphs generates what it generates without: captures, updates of attention, replays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("torch_npu")
overlay = pytest.importorskip("harness.devices.sim.start.overlay")

from harness.devices.sim.start.sim_environment import LAUNCHER, triton_environment  # noqa: E402


def _release(package: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in metadata.version(package).split(".")[:2])
    except metadata.PackageNotFoundError:
        return ()


pytestmark = [
    pytest.mark.skipif(overlay.installed() is None, reason="only on the simulated device"),
    pytest.mark.skipif(_release("vllm-ascend") < (0, 13), reason="only with vllm-ascend 0.13 or later"),
]

PROGRAM = """
import json, os, sys
from pathlib import Path
from harness.rollout.generation import vllm_engine
from harness.rollout.generation.tiny_checkpoints import make_checkpoint

if __name__ == "__main__":
    os.environ.update(vllm_engine.ENVIRONMENT)
    # Only a compiled model runs in graphs.
    os.environ["TORCHDYNAMO_DISABLE"] = "0"
    import torch, torch_npu
    folder, result = map(Path, sys.argv[1:])
    make_checkpoint(folder, "qwen3", "bfloat16", 0)
    replays, replay = [], torch.npu.NPUGraph.replay
    torch.npu.NPUGraph.replay = lambda graph: (replays.append(id(graph)), replay(graph))[1]
    graphs = {"mode": 3, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4]}
    found = []
    for options in ({}, {"enforce_eager": False, "compilation_config": graphs}):
        with vllm_engine.engine(folder, "bfloat16", **options) as llm:
            requests = vllm_engine.generate(llm)
        found.append([list(request.tokens) for request in requests])
    result.write_text(json.dumps({"eager": found[0], "graphs": found[1], "replays": len(replays)}))
"""


@pytest.mark.timeout(900)
def test_the_engine_generates_the_same_tokens_in_graphs(tmp_path: Path) -> None:
    program, result = tmp_path / "program.py", tmp_path / "result.json"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, *LAUNCHER, str(program), str(tmp_path / "checkpoint"), str(result)],
        env={**os.environ, **triton_environment(metadata.version("vllm-ascend"))},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    found = json.loads(result.read_text())
    assert found["replays"] > 0
    assert found["graphs"] == found["eager"]
