"""A check that could not read a commit is run again when a mirror has it, and not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from histories import History
from make_outcome import make_outcome

from harness.compat.checks import CHECKS
from harness.outcome import Status

PLATFORM = {"python": "3.11", "arch": "x86_64", "host": True}
RECIPE = {
    "name": "r",
    "entry": "verl.trainer.main_ppo",
    "overrides": {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
    },
    "env": {},
    "nodes": 1,
    "cards": 8,
}


def facets(commit: str) -> dict[str, Any]:
    nothing = {"package": "x", "kind": "release", "version": ""}
    return {
        "recipe": RECIPE,
        "versions": {"verl": f"0.6.1@{commit}", "python": "3.11", "soc": "a2"},
        "pins": {"requirements": ["transformers==4.57.6"], "overrides": []},
        "platform": PLATFORM,
        "torch_npu": {"package": "torch-npu", "kind": "release", "version": "2.7.1"},
        "verl_tree": {
            "package": "verl",
            "kind": "commit",
            "version": "0.6.1",
            "commit": commit,
            "repository": "",
        },
        "vllm_ascend": nothing,
        "patches[verl]": [],
        "patches[vllm_ascend]": [],
        "paired": {},
    }


@pytest.mark.parametrize("name", ["lint", "npu-ops", "api"])
def test_a_mirror_counts_only_if_it_has_the_commit(
    name: str, wheels: Any, context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.add("transformers", "4.57.6", files={"transformers/__init__.py": ""})
    schemas = {
        "torch_npu/csrc/aten/npu_native_functions.yaml": 'custom:\n- func: "npu_x(Tensor x) -> Tensor"\n'
    }
    wheels.add("torch-npu", "2.7.1", files={"torch_npu/__init__.py": "", **schemas})
    commit = History(tmp_path / "later" / "verl.git").commit({"verl/__init__.py": b""})
    History(tmp_path / "mirrors" / "other.git").commit({"other": b""})
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "mirrors"))
    [check] = [one for one in CHECKS if one.name == name]
    measured = check.run(context(facets(commit)))
    assert check.measurements is not None
    outcome = make_outcome("k", name, measurements=check.measurements.write(measured.measurements))
    assert check.judge(check.read(outcome), check.params).status is Status.NOT_RUN
    assert check.outdated(outcome) == "", "the folder of mirrors has no such commit"
    monkeypatch.setenv("NPU_MATRIX_MIRRORS", str(tmp_path / "later"))
    assert check.outdated(outcome) == f"a mirror now has the commit {commit[:12]}"
