"""The surface pack that is part of the program: complete, small, opened quickly, and what its digest says."""

from __future__ import annotations

import time

import pytest

from harness.compat.knowledge.pack_at_hand import shipped_pack_file
from harness.compat.knowledge.surface_pack import InRelease, SurfacePack
from harness.workspace.knowledge.pack_update import PACKAGES

MOST_BYTES = 25_000_000
MOST_SECONDS = 0.05


@pytest.fixture(scope="module")
def pack() -> SurfacePack:
    return SurfacePack(shipped_pack_file())


def test_it_has_every_package_of_the_stack_and_is_small(pack: SurfacePack) -> None:
    assert set(pack.packages) == set(PACKAGES)
    assert pack.file.stat().st_size <= MOST_BYTES
    releases = [one for name in pack.packages for one in pack.releases(name)]
    assert len(releases) >= 600
    assert sum(bool(one.unread) for one in releases) <= len(releases) // 50


def test_it_is_opened_quickly() -> None:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        SurfacePack(shipped_pack_file()).packages  # noqa: B018
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < MOST_SECONDS


# Facts that stand in the release notes or threads of these projects.
@pytest.mark.parametrize(
    ("package", "version", "name", "state"),
    [
        (
            "transformers",
            "4.57.6",
            "transformers.models.llama.modeling_llama.LlamaAttention",
            InRelease.FOUND,
        ),
        ("vllm", "0.10.0", "vllm.engine.arg_utils.EngineArgs.enable_reasoning", InRelease.MISSING),
        ("vllm", "0.9.1", "vllm.engine.arg_utils.EngineArgs.enable_reasoning", InRelease.FOUND),
        (
            "megatron-core",
            "0.12.1",
            "megatron.core.utils.get_tensor_model_parallel_group_if_none",
            InRelease.MISSING,
        ),
    ],
)
def test_what_it_says_is_true(
    package: str, version: str, name: str, state: InRelease, pack: SurfacePack
) -> None:
    assert pack.find(package, version, name)[0] is state
