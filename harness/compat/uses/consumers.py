"""Whose uses are looked at, of which packages, and where the sources of both come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.compat.checks import READING
from harness.compat.surface.release_sources import TooLargeError, commit_sources, fetch_sources
from harness.digest import digest_tree
from harness.package import PACKAGE_ROOT
from harness.sources.packages.pip_download import ReleaseNotFoundError, RunCommand


def _nothing(_version: str) -> Mapping[str, str]:
    return {}


def _vllm_of(version: str) -> Mapping[str, str]:
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
    made_for: Callable[[str], Mapping[str, str]] = _nothing


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
        made_for=_vllm_of,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where sources come from: the index through `command`, and mirrors for commits; kept in `cache`."""

    cache: Path
    command: RunCommand
    mirrors: Path | None

    def of(self, package: str, version: str, commit: str = "") -> Path | None:
        """The sources of a release or commit, None when they are not at hand."""
        if commit:
            return commit_sources(commit, cache=self.cache, mirrors=self.mirrors)
        try:
            return fetch_sources(package, version, cache=self.cache, command=self.command)
        except (ReleaseNotFoundError, TooLargeError):
            return None


@cache
def reading_code() -> str:
    """Digest of the code that reads sources and holds them against each other."""
    files = [PACKAGE_ROOT.parent.joinpath(*module.split(".")).with_suffix(".py") for module in READING]
    return digest_tree(PACKAGE_ROOT.parent, files)
