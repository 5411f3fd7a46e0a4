"""Two releases that were not made for each other, as they are: every break is found, by its root cause. Minutes.

`npu-matrix --profile full run --only 'verl-0-7-1-sim*' --check vllm-imports` builds the cell.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from harness.outcome import Status
from harness.rollout.breaks import judge, root_causes
from harness.sources.index import index_environment, uv_binary

pytestmark = [pytest.mark.cell, pytest.mark.timeout(1800)]
OTHER_VLLM = "vllm==0.19.1"
# Names that vLLM 0.19.1 no longer has and vllm-ascend 0.18.0 imports.
GONE = (
    "vllm_is_batch_invariant",
    "Qwen3NextGatedDeltaNet",
    "create_vllm_config_for_draft_model",
    "kv_offload",
)
# Places of vllm-ascend that ask for them, as counted when this was first seen (vllm_ascend imported as a whole).
SITES = 6


@pytest.fixture(scope="session")
def other_vllm(engine_cell, tmp_path_factory) -> Path:
    """The other vLLM, built in front of the cell's own: nothing of the cell changes."""
    folder = tmp_path_factory.mktemp("vllm")
    facts = engine_cell.environment.measurements
    settings = index_environment(os.environ)
    subprocess.run(
        [
            *(uv_binary(), "pip", "install", "--quiet", "--python", facts["python"], "--target", str(folder)),
            *("--no-deps", "--no-build-isolation", "--no-binary", "vllm", "--config-setting", "target=empty"),
            *(*settings.uv_arguments(), OTHER_VLLM),
        ],
        env={
            **os.environ,
            **settings.uv_environment(),
            "VLLM_TARGET_DEVICE": "empty",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "LD_LIBRARY_PATH": facts["runtime"],
        },
        check=True,
    )
    return folder


def test_a_pair_that_was_not_released_together_is_red_with_its_root_causes(engine_cell, other_vllm, tmp_path):
    out = tmp_path / "imports.json"
    argv, variables = engine_cell.command("harness.rollout.imports", "--out", str(out), "vllm_ascend")
    variables["PYTHONPATH"] = os.pathsep.join((str(other_vllm), variables["PYTHONPATH"]))
    subprocess.run(argv, env={**os.environ, **variables}, cwd=tmp_path, check=True, capture_output=True)
    report = json.loads(out.read_text("utf-8"))

    judgement = judge({"state": "measured", "left_out": ["triton-ascend"], **report}, {})
    assert judgement.status is Status.FAIL
    broken = [cause for cause in root_causes(report["breaks"]) if cause.kind == "api"]
    text = " ".join(cause.text for cause in broken)
    assert [name for name in GONE if name not in text] == []
    sites = [site for cause in broken for site in cause.sites]
    assert all(site.place.startswith("vllm_ascend/") for site in sites)
    assert len(sites) >= SITES
    assert sum(len(cause.modules) for cause in broken) >= 40
