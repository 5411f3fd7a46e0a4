"""Runs a patched file of vllm-ascend in a cell with vLLM, on the simulated device.

The commit of the patch has no wheel, so its file comes from a clone (`NPU_MATRIX_MIRRORS`). The file imports
nothing of vllm-ascend, and the operators that it calls are those of the cell's torch_npu.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from harness.sources.git.mirrors import MIRRORS, find_mirror, mirror_folders

pytestmark = [pytest.mark.cell, pytest.mark.timeout(1800)]
REPOSITORY = Path(__file__).parents[2]
COMMIT = "941d54a2ce1ce387e4bf5d80003c098ff6d44841"
FILE = "vllm_ascend/ops/fused_moe/experts_selector.py"
PATCH = REPOSITORY / "patches" / "vllm_ascend" / "grouped-softmax-routing" / "941d54a2.patch"
# DeepSeek-V2's routing (arXiv:2405.04434, 2.2.2): the experts of a token are of at most 3 groups of 8.
KEPT, GROUPS, EXPERTS, TAKEN = 3, 8, 32, 6
"""Groups that count, groups, experts, experts per token."""
ROUTE = f"""
import json, runpy, sys
from types import SimpleNamespace
import torch, torch_npu
import vllm.forward_context

vllm.forward_context.get_forward_context = lambda: SimpleNamespace(weight_prefetch_method=None)
select = runpy.run_path(sys.argv[1])["select_experts"]
logits = torch.randn(64, {EXPERTS}, generator=torch.Generator().manual_seed(0))


def groups(**asked):
    model = dict(top_k={TAKEN}, renormalize=False, use_grouped_topk=True, topk_group={KEPT}, num_expert_group={GROUPS})
    hidden = torch.zeros(64, 16, device="npu:0")
    _, chosen = select(hidden, logits.to("npu:0"), **{{**model, "scoring_func": "softmax", **asked}})
    return max(len(set(row)) for row in (chosen.long().cpu() // {EXPERTS // GROUPS}).tolist())


plain = groups(use_grouped_topk=False, topk_group=None, num_expert_group=None)
json.dump({{"limited": groups(), "plain": plain}}, open(sys.argv[2], "w"))
"""


def routed(cell, file: Path, folder: Path) -> dict[str, int]:
    """The largest number of expert groups of any token, with and without grouped routing."""
    out = folder / f"{file.stem}.json"
    (folder / "route.py").write_text(ROUTE, encoding="utf-8")
    argv, variables = cell.command("runpy")
    argv = [*argv[: argv.index("-m", argv.index("-m") + 1)], str(folder / "route.py"), str(file), str(out)]
    done = subprocess.run(
        argv, env={**os.environ, **variables}, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(out.read_text("utf-8")))


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    """The file of the commit, without and with the patch."""
    folder = mirror_folders()
    clone = find_mirror(folder, COMMIT)
    if clone is None:
        pytest.skip(f"{MIRRORS} names no folder with a clone of vllm-ascend that has {COMMIT[:8]}")
    blob = clone.tree(COMMIT).read(FILE)
    for name in ("unpatched", "patched"):
        place = tmp_path / name / FILE
        place.parent.mkdir(parents=True)
        place.write_bytes(blob)
    patched = tmp_path / "patched"
    # The file and the patch have CRLF line endings, which git must not convert.
    subprocess.run(
        ["git", "-c", "core.autocrlf=false", "apply", str(PATCH)],
        cwd=patched,
        check=True,
        env=_no_repository(),
    )
    return tmp_path / "unpatched" / FILE, patched / FILE


def test_experts_are_of_the_groups_that_count_with_the_patch_and_of_all_without(engine_cell, files, tmp_path):
    unpatched, patched = (
        routed(engine_cell, file, tmp_path / name)
        for name, file in zip(("unpatched", "patched"), files, strict=True)
    )
    assert unpatched["limited"] > KEPT
    assert patched["limited"] <= KEPT
    # The patch does not change the routing of models without groups.
    assert patched["plain"] == unpatched["plain"] > KEPT


def _no_repository() -> dict[str, str]:
    """Variables that hide this repository from `git apply`, which ignores paths outside its repository."""
    return {**os.environ, "GIT_CEILING_DIRECTORIES": "/"}
