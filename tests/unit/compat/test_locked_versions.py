"""The checks `npu-ops` and `lint` read the versions and the archives that `resolve` locked for the cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make_outcome import make_outcome
from wheelhouse import Wheels

from harness.compat.checks import CHECKS
from harness.digest import digest_file
from harness.errors import InfrastructureError
from harness.sources.packages.resolve_measurements import RESOLVE_FORMAT, ResolvedPackage, ResolveMeasured

PLATFORM = {"pins": {}, "platform": {"python": "3.11", "arch": "x86_64", "host": True}}
OPERATORS = "torch_npu/csrc/aten/npu_native_functions.yaml"
USE = "import torch_npu\ntorch_npu.npu_swiglu(x, dim=1)\n"
MAIN = (
    "import hydra\n\n\n@hydra.main(config_path='config', config_name='ppo_trainer')\ndef main(config): ...\n"
)
FILES = {
    "torch-npu": {OPERATORS: 'custom:\n- func: "npu_swiglu(Tensor self, int dim=-1) -> Tensor"\n'},
    "verl": {
        "verl/ops.py": USE,
        "verl/trainer/main_ppo.py": MAIN,
        "verl/trainer/config/ppo_trainer.yaml": "trainer: {nnodes: 1}\n",
    },
}
RECIPE = {
    "name": "r",
    "entry": "verl.trainer.main_ppo",
    "overrides": {"trainer.nnodes": 1},
    "env": {},
    "nodes": 1,
    "cards": 8,
}


def release(package: str, version: str) -> dict[str, str]:
    return {"package": package, "kind": "release", "version": version}


FACETS: dict[str, dict[str, Any]] = {
    "npu-ops": {
        "torch_npu": release("torch-npu", "2.7"),
        "verl_tree": release("verl", "0.9"),
        "vllm_ascend": release("vllm-ascend", ""),
    },
    "lint": {
        "recipe": RECIPE,
        "versions": {"verl": "0.9", "torch_npu": "2.7", "python": "host", "soc": "a2"},
    },
}
#: Check -> the packages whose archives it reads.
READ = {"npu-ops": {"torch-npu", "verl"}, "lint": {"verl"}}


@pytest.mark.parametrize("name", FACETS)
def test_a_check_reads_what_is_locked_and_nothing_else(wheels: Wheels, context: Any, name: str) -> None:
    """The lock has other versions than planned, and then other archives than the index."""
    locked = {
        package: wheels.add(package, version, files=FILES[package])
        for package, version in (("torch-npu", "2.7.1"), ("verl", "0.9.1"))
    }
    for package, version in (("torch-npu", "2.7"), ("verl", "0.9")):
        wheels.add(package, version, files=FILES[package])
    digests = {package: digest_file(wheel) for package, wheel in locked.items()}
    packages = tuple(
        ResolvedPackage(name=package, version=_version(wheel), file=wheel.name, sha256=digests[package])
        for package, wheel in locked.items()
    )
    measured = RESOLVE_FORMAT.write(ResolveMeasured(resolved=True, packages=packages))
    ctx = context({**PLATFORM, **FACETS[name]})
    ctx.inputs = {"resolve": make_outcome(check="resolve", measurements=measured)}
    check = next(check for check in CHECKS if check.name == name)
    found = check.run(ctx).measurements
    assert {one.package: one.sha256 for one in found.archives_read} == {
        package: digests[package] for package in READ[name]
    }
    for package, wheel in locked.items():
        wheels.add(package, _version(wheel), files={**FILES[package], "more.py": ""})
    with pytest.raises(InfrastructureError, match="does not have the locked archive"):
        check.run(ctx)


def _version(wheel: Path) -> str:
    return wheel.name.split("-")[1]
