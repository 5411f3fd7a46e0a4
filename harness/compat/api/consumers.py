"""Whose uses are looked at, of which packages, and where the sources of both come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version


def _no_target_versions(_version: str) -> Mapping[str, str]:
    return {}


def _vllm_target(version: str) -> Mapping[str, str]:
    """vllm-ascend X.Y.Z, its candidates and its post releases are for vLLM X.Y.Z.

    Source: docs/source/community/versioning_policy.md of vllm-project/vllm-ascend.
    """
    try:
        return {"vllm": Version(version).base_version}
    except InvalidVersion:
        return {}


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A package whose uses are looked at.

    providers: packages whose names it takes; what it takes of torch_npu is check `npu-ops`' question.
    ranged: those of them that it states a range of and the matrix has no axis for.
    roots: modules that every training imports (entry points and workers).
    made_for: its version -> provider -> the version it was published for, where that is known.
    """

    package: str
    providers: tuple[str, ...]
    roots: tuple[str, ...]
    ranged: tuple[str, ...] = ()
    made_for: Callable[[str], Mapping[str, str]] = _no_target_versions


CONSUMERS = (
    Consumer(
        package="verl",
        providers=("transformers", "tensordict", "ray", "vllm", "torch"),
        ranged=("transformers", "tensordict", "ray"),
        roots=("verl.trainer.main_ppo", "verl.workers.fsdp_workers", "verl.workers.engine_workers"),
    ),
    Consumer(
        package="vllm-ascend",
        providers=("vllm", "transformers", "torch"),
        roots=(
            "vllm_ascend.platform",
            "vllm_ascend.worker.worker",
            "vllm_ascend.worker.worker_v1",
            "vllm_ascend.worker.model_runner_v1",
        ),
        made_for=_vllm_target,
    ),
)
