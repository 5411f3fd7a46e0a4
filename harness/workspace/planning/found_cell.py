"""The cell `as-found`: the versions that an installed environment and this host have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from harness.builds.installed.found_python import FoundPackage, FoundPython
from harness.check import Check
from harness.devices.host.host_inspection import HostReport
from harness.errors import InputError, Location
from harness.matrix.model.definitions import Axis, Stack
from harness.matrix.version_matrix import Matrix
from harness.sources.packages.lockfile import normal_name

AS_FOUND = "as-found"
#: What checks of the device import in any case, so a cell without them would not say what was measured.
_OF_DEVICE = ("torch", "torch-npu")
#: The checks that import nothing else.
_CHECKS_OF_DEVICE = ("environment", "device-sample", "collectives", "hosts")


def with_found_stack(matrix: Matrix, found: FoundPython, host: HostReport) -> Matrix:
    """The matrix with the stack `as-found`; InputError if no package of an axis is installed."""
    unidentified = dict(_unidentified(matrix, found))
    axes = {
        name: value
        for name, axis in matrix.axes.items()
        if axis.package
        and (not unidentified or normal_name(axis.package) in _OF_DEVICE)
        and (value := _value(axis, found.packages.get(normal_name(axis.package))))
    }
    if not axes:
        raise InputError(
            "the environment has no package that the matrix names",
            where=Location(found.python),
            fix="name the interpreter that has torch_npu and verl: --found-python PATH",
        )
    facts = {
        "python": ".".join(found.version.split(".")[:2]),
        "cann": host.cann,
        "soc": host.soc,
        "arch": host.machine,
        "device": "npu",
    }
    axes |= {name: value for name, value in facts.items() if value and name in matrix.axes}
    where = Location(found.python)
    stack = Stack(
        name=AS_FOUND,
        title="what is installed here, as it was found",
        source=found.python,
        axes={name: axes[name] for name in matrix.axes if name in axes},
        recipe="",
        findings=(),
        notes=(*_left_out(matrix, found), *_only_device(unidentified)),
        provenance=dict.fromkeys(axes, where),
        where=where,
    )
    return replace(matrix, stacks={**matrix.stacks, AS_FOUND: stack})


def _left_out(matrix: Matrix, found: FoundPython) -> Iterator[str]:
    """A sentence for each package of an axis that only PYTHONPATH or the user's site has."""
    for name in filter(None, (normal_name(axis.package or "") for axis in matrix.axes.values())):
        if name in found.elsewhere and name not in found.packages:
            yield (
                f"{name} is in {found.elsewhere[name]} (PYTHONPATH, or packages of this user), and not "
                "installed in this environment: checks do not import it. `pip install --no-deps -e` it."
            )


def _unidentified(matrix: Matrix, found: FoundPython) -> Iterator[tuple[str, str]]:
    """(package, why its version does not tell what it is), for the axes without those of the device."""
    for name in filter(None, (normal_name(axis.package or "") for axis in matrix.axes.values())):
        package = found.packages.get(name)
        if package is not None and name not in _OF_DEVICE and package.why_unidentified:
            yield name, package.why_unidentified


def left_out_as_found(matrix: Matrix, found: FoundPython, checks: Iterable[Check]) -> dict[str, str]:
    """Check -> why it is not run with what was found, because it may import what no version tells."""
    unknown = "; ".join(f"{name} {why}" for name, why in _unidentified(matrix, found))
    named = [check.name for check in checks if check.name not in _CHECKS_OF_DEVICE]
    return dict.fromkeys(named, f"nobody can say what it would measure: {unknown}") if unknown else {}


def _only_device(unidentified: Mapping[str, str]) -> Iterator[str]:
    """What the cell lacks, because one package that nobody can name may change what the others do."""
    for name, why in unidentified.items():
        yield (
            f"{name} {why}. No version or commit says what that is, so this cell is the device with "
            f"{' and '.join(_OF_DEVICE)} only. To have it checked too, install {name} from an index, or "
            "commit its changes and install that folder with `pip install --no-deps -e`."
        )


def _value(axis: Axis, package: FoundPackage | None) -> str:
    """The value of the axis for an installed package; "" if none is installed, or no value fits."""
    if package is None:
        return ""
    commit = package.commit.partition("+")[0] if axis.repository else ""
    text = package.version.partition("+")[0] + (f"@{commit}" if commit else "")
    try:
        return str(axis.parse(text))
    except ValueError:
        return ""
