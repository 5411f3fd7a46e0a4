"""The disk a cell's environment will take: what environments like it took where they were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.matrix.model.versions import Scheme, parse_version

#: The check that makes an environment; cells with the same key share one.
ENVIRONMENT_CHECK = "environment"
#: MiB of a simulated cell's environment by its vllm-ascend, "" without: `du -slm` of built ones on x86_64, of
#: several the largest.
MEASURED_MIB: Mapping[str, int] = {"": 1776, "0.11.0": 3841, "0.13.0": 3984, "0.18.0": 4173, "0.23.0": 4624}


@dataclass(frozen=True, kw_only=True)
class DiskEstimate:
    """MiB an environment takes without the installer's cache beside it, and what the figure rests on."""

    mib: int
    basis: str


def estimate_environment_disk(axes: Mapping[str, str], device: str) -> DiskEstimate | None:
    """What building the environment of a cell takes; None where none was ever measured, on real NPUs.

    axes: the cell's values. Of a vllm-ascend that was not measured, the nearest measured one before it.
    """
    if device != "sim":
        return None
    wanted = axes.get("vllm_ascend", "")
    like = _nearest(wanted) if wanted else ""
    with_what = f"with vllm-ascend {like}" if like else "without vllm-ascend"
    return DiskEstimate(mib=MEASURED_MIB[like], basis=f"measured {with_what} on x86_64, as documented")


def _nearest(wanted: str) -> str:
    known = [version for version in MEASURED_MIB if version]
    try:
        asked = parse_version(Scheme.PEP440, wanted)
    except ValueError:
        # Its axis has names instead of numbers: most likely a branch, which is newer than releases.
        return known[-1]
    before = [version for version in known if parse_version(Scheme.PEP440, version) <= asked]
    return before[-1] if before else known[0]
