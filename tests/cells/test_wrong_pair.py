"""Two releases that were not made for each other: every broken import is found by its cause. Takes minutes.

`npu-matrix --profile full run --only 'verl-0-7-1-sim*' --check vllm-imports` builds the cell.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from import_graph import Graph, Site

from harness.measurements import read_shape
from harness.outcome import Status
from harness.rollout.imports.import_breaks import judge, root_causes
from harness.rollout.imports.import_measurements import ImportMeasurements, ImportReport
from harness.sources.packages.index_settings import index_environment, uv_binary
from harness.sources.packages.uv_settings import write_uv_settings

pytestmark = [pytest.mark.cell, pytest.mark.timeout(1800)]
OTHER_VLLM = "vllm==0.19.1"
_GONE = "vllm.model_executor.layers.batch_invariant.vllm_is_batch_invariant"
# The six root causes: import in vllm-ascend 0.18.0 -> the name that vLLM 0.19.1 no longer has, and the number of
# modules that fail there. `import_graph` derives them from the sources of both.
ROOT_CAUSES = {
    "vllm_ascend/patch/worker/patch_qwen3_next.py:26": (
        "vllm.model_executor.models.qwen3_next.Qwen3NextGatedDeltaNet",
        35,
    ),
    "vllm_ascend/spec_decode/draft_proposer.py:6": (
        "vllm.v1.spec_decode.utils.create_vllm_config_for_draft_model",
        6,
    ),
    "vllm_ascend/_310p/sample/sampler.py:19": (_GONE, 4),
    "vllm_ascend/batch_invariant.py:24": (_GONE, 3),
    "vllm_ascend/sample/sampler.py:2": (_GONE, 2),
    "vllm_ascend/kv_offload/npu.py:8": ("vllm.v1.kv_offload.backends", 1),
}
# Steps of vllm-ascend before any module is imported. The first one imports in a function, which the graph ignores.
STEPS = {
    "vllm_ascend: compiled extension": ("vllm_ascend/utils.py:262", _GONE),
    "vllm_ascend: patches of a worker": (
        "vllm_ascend/patch/worker/patch_qwen3_next.py:26",
        ROOT_CAUSES["vllm_ascend/patch/worker/patch_qwen3_next.py:26"][0],
    ),
}


@pytest.fixture(scope="session")
def other_vllm(engine_cell, tmp_path_factory) -> Path:
    """A folder with the other vLLM, which hides the cell's vLLM. The cell is not changed."""
    folder = tmp_path_factory.mktemp("vllm")
    facts = engine_cell.environment.measurements
    settings = index_environment(os.environ)
    work = tmp_path_factory.mktemp("uv")
    write_uv_settings(work, settings.uv_file())
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
        cwd=work,
    )
    return folder


@pytest.fixture(scope="session")
def ended(engine_cell, other_vllm) -> Mapping[str, Site]:
    """Module of vllm-ascend -> the import that fails with the other vLLM, derived from the sources alone."""
    [own] = Path(engine_cell.environment.measurements["prefix"]).glob("lib/python*/site-packages")
    beside_its_own = Graph(package="vllm_ascend", own=own, used="vllm", other=own)
    assert beside_its_own.broken() == {}
    return Graph(package="vllm_ascend", own=own, used="vllm", other=other_vllm).broken()


def test_the_sources_of_both_releases_say_which_imports_fail(ended):
    modules = Counter(site.place for site in ended.values())
    assert {site.place: (site.missing, modules[site.place]) for site in ended.values()} == ROOT_CAUSES


def test_a_pair_that_was_not_released_together_is_red_with_its_root_causes(
    engine_cell, other_vllm, ended, tmp_path
):
    out = tmp_path / "imports.json"
    argv, variables = engine_cell.command(
        "harness.rollout.imports.import_program", "--out", str(out), "vllm_ascend"
    )
    variables["PYTHONPATH"] = os.pathsep.join((str(other_vllm), variables["PYTHONPATH"]))
    subprocess.run(argv, env={**os.environ, **variables}, cwd=tmp_path, check=True, capture_output=True)
    report = read_shape(ImportReport, out)

    judgement = judge(
        ImportMeasurements(
            packages=report.packages,
            breaks=report.breaks,
            device=report.device,
            left_out=("triton-ascend",),
        ),
        {},
    )
    assert judgement.status is Status.FAIL
    broken = [cause for cause in root_causes(report.breaks) if cause.kind == "api"]
    found = {
        module: (site.place.partition(" ")[0], cause.missing)
        for cause in broken
        for site in cause.sites
        for module in site.modules
    }
    # Exactly the expected modules fail, each for the expected reason.
    assert found == {**{module: (site.place, site.missing) for module, site in ended.items()}, **STEPS}
    told = " ".join(judgement.reasons)
    assert [place for place in ROOT_CAUSES if place not in told] == []
    assert f"{len(ended) + len(STEPS)} modules break" in told
