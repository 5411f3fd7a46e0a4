"""Estimates the disk space of a cell's environment from measured environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.matrix.model.versions import Scheme, parse_version

#: The check that builds an environment; cells with the same key share it.
ENVIRONMENT_CHECK = "environment"
#: vllm-ascend version ("" for none) -> MiB of the environment of a simulated cell: `du -slm` on x86_64, the
#: largest of several environments.
MEASURED_MIB: Mapping[str, int] = {"": 1776, "0.11.0": 3841, "0.13.0": 3984, "0.18.0": 4173, "0.23.0": 4624}


@dataclass(frozen=True, kw_only=True)
class DiskEstimate:
    """The size of an environment in MiB, without the cache of the installer, and how it was estimated."""

    mib: int
    basis: str


def estimate_environment_disk(axes: Mapping[str, str], device: str) -> DiskEstimate | None:
    """The size of a cell's environment; None for cells on NPUs, for which none was measured.

    For a vllm-ascend version that was not measured, the nearest earlier measured version is used.
    """
    if device != "sim":
        return None
    version = axes.get("vllm_ascend", "")
    like = _nearest(version) if version else ""
    with_what = f"with vllm-ascend {like}" if like else "without vllm-ascend"
    return DiskEstimate(mib=MEASURED_MIB[like], basis=f"measured {with_what} on x86_64, as documented")


def _nearest(version: str) -> str:
    measured = [one for one in MEASURED_MIB if one]
    try:
        parsed = parse_version(Scheme.PEP440, version)
    except ValueError:
        # Not a version number: most likely a branch, which is newer than the releases.
        return measured[-1]
    before = [one for one in measured if parse_version(Scheme.PEP440, one) <= parsed]
    return before[-1] if before else measured[0]
