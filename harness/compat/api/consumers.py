"""The packages whose uses are checked, and the providers that they are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version


def _vllm_target(version: str) -> Mapping[str, str]:
    """The vLLM version that a vllm-ascend version is for: X.Y.Z, X.Y.ZrcN and X.Y.Z.postN are for vLLM X.Y.Z.

    Source: docs/source/community/versioning_policy.md of vllm-project/vllm-ascend.
    """
    try:
        return {"vllm": Version(version).base_version}
    except ValueError:  # InvalidVersion, or a number with thousands of digits
        return {}


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A package whose uses are checked.

    providers: the packages it is checked against; the check `npu-ops` does this for torch_npu.
    ranged: providers that it requires in a range and that are not an axis of the matrix.
    roots: modules that every training imports (entry points and workers), or with which the package starts.
    required: providers that it cannot do without: without an import of one, its modules are of no use.
    """

    package: str
    providers: tuple[str, ...]
    roots: tuple[str, ...]
    ranged: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    def made_for(self, version: str) -> Mapping[str, str]:
        """The known provider versions that a version of the package was published for."""
        return _vllm_target(version) if self.package == "vllm-ascend" else {}


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
    ),
)
