"""Which wheel of a package is for the NPU of a host: wheel variants, and wheels that fit one SoC only."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from harness.devices.host.soc import NPU_TYPES
from harness.errors import HarnessError
from harness.matrix.model.definitions import Axis
from harness.matrix.version_matrix import Matrix
from harness.sources.packages.index_settings import index_environment
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.variant_index import PublishedVariants, published_variants
from harness.sources.packages.wheel_variants import (
    Supported,
    VariantWheel,
    abi_values,
    files_of,
    fitting_variants,
    misfits,
)

#: (index, package, version) -> what the index has of it; HarnessError if it cannot be read.
Lookup = Callable[[str, str, str], PublishedVariants | None]


@dataclass(frozen=True, kw_only=True)
class HostWheel:
    """The wheel of a package for a host.

    variants: the wheels of the variant that fits, one for each machine architecture. problem: why the
    ordinary wheel must not be used, or no variant fits; "" if all is well. mend: what to do then.
    """

    package: str
    version: str
    variants: tuple[VariantWheel, ...] = ()
    problem: str = ""
    mend: str = ""
    source: str = ""


def lookup_variants(index: str, package: str, version: str) -> PublishedVariants | None:
    """Ask an index of wheel variants with the user's network settings."""
    return published_variants(index, package, version, index_environment(os.environ))


def asking_once(lookup: Lookup) -> Lookup:
    """The lookup, which asks for a release once, and an index that could not be read not again."""
    found: dict[tuple[str, str, str], PublishedVariants | None] = {}
    unreadable: dict[str, HarnessError] = {}

    def ask(index: str, package: str, version: str) -> PublishedVariants | None:
        if index in unreadable:
            raise unreadable[index]
        try:
            if (index, package, version) not in found:
                found[index, package, version] = lookup(index, package, version)
        except HarnessError as error:
            unreadable[index] = error
            raise
        return found[index, package, version]

    return ask


def host_wheels(
    matrix: Matrix, values: Mapping[str, str], driver: str, lookup: Lookup | None
) -> Iterator[HostWheel]:
    """The wheels of packages that are built for particular NPUs.

    values: the version of each axis. lookup: None if no index is asked.
    """
    if values.get("device") != "npu" or "soc" not in values:
        return
    for axis in (matrix.axes[name] for name in values):
        if axis.variants and axis.package and axis.on_index:
            yield _host_wheel(axis, values, _supported(matrix, values, driver), lookup)


def variants_for(
    matrix: Matrix, values: Mapping[str, str], packages: Collection[str], arch: str, lookup: Lookup
) -> dict[str, VariantWheel]:
    """Those of these packages that have a wheel variant for the NPU and the architecture of a stack.

    values: the version of each axis of the stack. arch: for example aarch64.
    """
    found: dict[str, VariantWheel] = {}
    if not any(axis.variants and normal_name(axis.package) in packages for axis in matrix.axes.values()):
        return found
    for wheel in host_wheels(matrix, values, values.get("driver", ""), lookup):
        for one in wheel.variants:
            if wheel.package in packages and one.is_for(arch):
                found[wheel.package] = one
    return found


def _supported(matrix: Matrix, values: Mapping[str, str], driver: str) -> Supported:
    """What the provider of Ascend reports on such a host, and the versions of the stack's packages."""
    packages = {axis.package: values[name] for name in values if (axis := matrix.axes[name]).package}
    return {
        "ascend": {
            "npu_type": NPU_TYPES.get(values["soc"], ()),
            "driver_version": (driver.lower(),) if driver else (),
            "cann_version": (values["cann"].lower(),) if "cann" in values else (),
        },
        "abi_dependency": abi_values(packages),
    }


def _host_wheel(
    axis: Axis, values: Mapping[str, str], supported: Supported, lookup: Lookup | None
) -> HostWheel:
    assert axis.variants is not None
    version, soc, source = values[axis.name], values["soc"], axis.variants.source
    found, missing = None, "the index of wheel variants was not asked"
    if lookup is not None:
        missing = f"{axis.variants.index} has no variants of {axis.package} {version}"
        try:
            found = lookup(axis.variants.index, axis.package, version)
        except HarnessError as error:
            missing = f"{error.problems[0].what}: {error.problems[0].where}"
    if found is not None:
        for label in fitting_variants(found.variants, supported):
            names = files_of(label, found.files, version, values["python"])
            if names:
                variants = [
                    VariantWheel(label=label, address=found.files[name], sha256=found.digests.get(name, ""))
                    for name in names
                ]
                return HostWheel(
                    package=axis.package, version=version, variants=tuple(variants), source=source
                )
        missing = _no_variant(axis, found, supported, values["python"])
    is_plain = soc in axis.variants.plain_for
    return HostWheel(
        package=axis.package,
        version=version,
        problem=""
        if is_plain
        else f"the wheels of {axis.package} on the package index are built for "
        f"{', '.join(axis.variants.plain_for)}, not for {soc}; {missing}",
        mend=f"build {axis.package} from source for {soc}"
        + (", as the exports of npu-matrix do" if axis.build_env else "")
        + f", or install its variant for {soc} from {axis.variants.index}",
        source=source,
    )


def _no_variant(axis: Axis, found: PublishedVariants, supported: Supported, python: str) -> str:
    """Why no variant can be used."""
    reasons = []
    for label in found.variants.variants:
        needed = misfits(found.variants, label, supported)
        reasons.append(
            f"{label} needs {', '.join(needed)}" if needed else f"{label} has no wheel for {python}"
        )
    return f"no variant of {axis.package} fits: {'; '.join(reasons) or 'there is none'}"
