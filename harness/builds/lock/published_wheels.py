"""Which packages with a configured build have a published wheel that fits the cell's chip."""

from __future__ import annotations

from packaging.requirements import InvalidRequirement, Requirement

from harness.devices.host.soc import build_family
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.resolve_measurements import ResolveMeasured

# A wheel with kernels is compiled against one version of these.
COMPILED_AGAINST = frozenset({"torch", "torch-npu"})


def fitting_wheels(resolved: ResolveMeasured, soc: str) -> dict[str, str]:
    """Package -> the file name of its wheel for the target, if the wheel states that it is built for `soc`.

    A wheel that states no chip (those of vLLM are for CUDA) does not count, nor one that requires another
    torch or torch_npu than the lock has. soc: the SoC family of the cell, for example `a2`.
    """
    other_torch = {
        normal_name(hidden.of)
        for hidden in resolved.hidden
        if _required(hidden.requirement) in COMPILED_AGAINST
    }
    return {
        package.name: package.file
        for package in resolved.packages
        if package.file.endswith(".whl")
        and package.name not in other_torch
        and _family(resolved.built_for.get(package.name, "")) == soc.lower() != ""
    }


def _required(requirement: str) -> str:
    """The package that a requirement names; "" if the metadata is malformed."""
    try:
        return normal_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""


def _family(chip: str) -> str:
    """The SoC family of a chip as a wheel names it: `ASCEND910B1` and `A2` are both `a2`."""
    return build_family(chip) or chip.lower().removeprefix("_")
