from __future__ import annotations

import pytest
from memory_tree import MemoryTree

from harness.patchstack.runtime.monkey_patches import (
    TargetState,
    accepts,
    check_runtime,
    find_runtime_patches,
    find_target,
)
from harness.sources.tree import TreeFile

PATCHES = b"""\
import vllm.v1.core as core
import vllm.worker
from vllm.config import ParallelConfig
from vllm.model import layer
from torch import nn


def init(self, size: int) -> None:
    pass


def wider(self, x, extra):
    return x


class Ours:
    def forward(self, x):
        return x


ParallelConfig.__init__ = init
core.Scheduler.step = wider
core.Scheduler.brand_new = init
vllm.worker.run = Ours.forward
setattr(layer, "Attention", Ours)
layer.gone.Thing.forward = Ours.forward
nn.Module.forward = init
local = 3
"""
UPSTREAM = {
    "vllm/__init__.py": b"",
    "vllm/config/__init__.py": b"from vllm.config.parallel import ParallelConfig\n",
    "vllm/config/parallel.py": b"class ParallelConfig:\n    def __init__(self, size):\n        self.size = size\n",
    "vllm/v1/core.py": b"class Scheduler:\n    def step(self, x):\n        return x\n",
    "vllm/worker.py": b"def run(self, x):\n    return x\n",
    "vllm/model/layer.py": b"class Attention:\n    pass\n",
}


def tree(**changed: bytes | None) -> MemoryTree:
    files = {
        **UPSTREAM,
        **{path.replace("__", "/").replace("_py", ".py"): data for path, data in changed.items()},
    }
    return MemoryTree(files={path: TreeFile(data=data) for path, data in files.items() if data is not None})


def patches() -> MemoryTree:
    return MemoryTree(
        files={"va/patch/one.py": TreeFile(data=PATCHES), "va/other.py": TreeFile(data=PATCHES)}
    )


def test_assignments_to_another_package_are_found() -> None:
    found = find_runtime_patches(patches(), "va/patch", "vllm")
    assert [(patch.target, patch.line, patch.signature) for patch in found] == [
        ("vllm.config.ParallelConfig.__init__", 21, "(self, size: int) -> None"),
        ("vllm.v1.core.Scheduler.step", 22, "(self, x, extra)"),
        ("vllm.v1.core.Scheduler.brand_new", 23, "(self, size: int) -> None"),
        ("vllm.worker.run", 24, "(self, x)"),
        ("vllm.model.layer.gone.Thing.forward", 26, "(self, x)"),
        ("vllm.model.layer.Attention", 25, ""),
    ] or {patch.line for patch in found} == {21, 22, 23, 24, 25, 26}


def test_targets_are_looked_up_through_re_exports() -> None:
    verdicts = check_runtime(find_runtime_patches(patches(), "va/patch", "vllm"), tree())
    states = {verdict.patch.target.removeprefix("vllm."): verdict for verdict in verdicts}
    init = states["config.ParallelConfig.__init__"]
    assert (init.target.state, init.target.path, init.problem) == (
        TargetState.FOUND,
        "vllm/config/parallel.py",
        "",
    )
    assert states["v1.core.Scheduler.brand_new"].target.state is TargetState.ADDED
    assert states["model.layer.Attention"].target.kind == "class"
    assert states["model.layer.gone.Thing.forward"].target.state is TargetState.MOVED
    assert "vllm.model.layer.gone.Thing no longer exists" in states["model.layer.gone.Thing.forward"].problem
    assert (
        "takes (self, x), but its replacement takes (self, x, extra)"
        in states["v1.core.Scheduler.step"].problem
    )


def test_a_target_in_a_removed_or_unreadable_module() -> None:
    assert find_target(tree(), "other.thing").state is TargetState.MOVED
    broken = MemoryTree(files={"vllm/worker.py": TreeFile(data=b"def (")})
    assert find_target(broken, "vllm.worker.run").state is TargetState.UNREADABLE


def test_re_exports_in_a_circle_end() -> None:
    circle = MemoryTree(
        files={
            "a/x.py": TreeFile(data=b"from a.y import f\n"),
            "a/y.py": TreeFile(data=b"from a.x import f\n"),
        }
    )
    assert find_target(circle, "a.x.f").state in TargetState


@pytest.mark.parametrize(
    ("replacement", "upstream", "expected"),
    [
        ("(self, x)", "(self, x)", True),
        ("(self, x: int) -> str", "(self, x)", True),
        ("(self, x, extra=None)", "(self, x)", True),
        ("(self, x, extra)", "(self, x)", False),
        ("(self)", "(self, x)", False),
        ("(self, y)", "(self, x)", False),
        ("(*args, **kwargs)", "(self, x, *, y=1, **more)", True),
        ("(self, x)", "(self, x=1)", False),
        ("(self, x=2)", "(self, x=1)", True),
        ("(self, x, y=1)", "(self, x, *, y=1)", True),
        ("(self, x)", "(self, x, *, y=1)", False),
        ("(self, x)", "(self, x, **more)", False),
        ("(self, x)", "(self, *x)", False),
        ("(cls, x)", "(self, x)", True),
        ("async (self, x)", "async (self, x)", True),
        ("", "(self)", True),
    ],
)
def test_whether_a_replacement_accepts_the_arguments_of_its_target(
    replacement: str, upstream: str, expected: bool
) -> None:
    assert accepts(replacement, upstream) is expected


HELPER = b"""\
class PatchHelper:
    @classmethod
    def __class_getitem__(cls, target):
        return type(cls.__name__, (cls,), {"target": target})
"""
PATCH_CLASSES = b"""\
from typing import Generic

from ours.util import PatchHelper
from vllm import worker
from vllm.v1.core import Scheduler


class SchedulerPatch(PatchHelper[Scheduler]):
    added = 1

    def step(self, x):
        return x

    def gone(self):
        pass


class WorkerPatch(PatchHelper[worker]):
    @staticmethod
    def run(other):
        return other


class NoPatch(Generic[Scheduler]):
    def step(self):
        pass


class Elsewhere(PatchHelper[Generic]):
    def step(self):
        pass
"""


def test_attributes_of_patch_classes_are_runtime_patches():
    ours = {"ours/util.py": HELPER, "ours/patches.py": PATCH_CLASSES}
    patching = MemoryTree(files={path: TreeFile(data=data) for path, data in ours.items()})
    found = check_runtime(find_runtime_patches(patching, "ours", "vllm"), tree())
    assert {verdict.patch.target: verdict.target.state for verdict in found} == {
        "vllm.v1.core.Scheduler.added": TargetState.ADDED,
        "vllm.v1.core.Scheduler.step": TargetState.FOUND,
        "vllm.v1.core.Scheduler.gone": TargetState.ADDED,
        "vllm.worker.run": TargetState.FOUND,
    }
    assert {verdict.patch.target: verdict.problem for verdict in found if verdict.problem} == {
        "vllm.worker.run": "vllm.worker.run takes (self, x), but its replacement takes (other)"
    }


def test_a_target_of_a_patch_class_that_moved_is_a_problem():
    ours = {"ours/util.py": HELPER, "ours/patches.py": PATCH_CLASSES}
    patching = MemoryTree(files={path: TreeFile(data=data) for path, data in ours.items()})
    renamed = tree(vllm__v1__core_py=b"class OtherScheduler:\n    def step(self, x):\n        return x\n")
    found = check_runtime(find_runtime_patches(patching, "ours", "vllm"), renamed)
    assert "vllm.v1.core.Scheduler.step: vllm.v1.core.Scheduler no longer exists" in {
        verdict.problem for verdict in found
    }
