"""Judges the check `environment`: are the installed packages and files the locked and patched ones?"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import Version

from harness.cell_program.built_environment import (
    CellDevice,
    EnvironmentBuilt,
    EnvironmentNotBuilt,
    FailedImport,
    ImportedModule,
    PatchedFile,
    ProbedDevice,
    modules_to_import,
)
from harness.evidence import Runtime
from harness.outcome import Judgement, Status

REMEDIES = {
    "interpreter": "Install this Python version (for example `uv python install`), or choose another one for "
    "the cell.",
    "engine": "Run on a suitable host; `npu-matrix doctor` reports what this host can run.",
    "venv": "Read the end of the log; the interpreter may have been installed without its venv module.",
    "install": "Read the end of the log; `npu-matrix run --only CELL --check resolve` makes a new lock.",
    "build": "Read the end of the log: the build of the package reports what is missing.",
    "patch": "Rebase the patch onto this version: `npu-matrix patches rebase`.",
    "verify": "The stored output names these files. `npu-matrix run --check environment --fresh` installs "
    "the packages again; if the files are the same then, the published package contradicts itself.",
    "runtime": "Choose a torch_npu wheel for this machine's architecture.",
    "probe": "Read the end of the log: the interpreter of the cell could not run.",
}


FOUND_REMEDY = (
    "The environment is not changed. If --only names a row, choose the row that it is, or leave out --only: "
    "then the cell has the versions that are installed. Install packages with changed files again."
)


def judge(measurements: EnvironmentBuilt | EnvironmentNotBuilt, _params: Mapping[str, Any]) -> Judgement:
    """Pass when the environment is as locked and patched, its modules import and its device responds."""
    if isinstance(measurements, EnvironmentNotBuilt):
        return _judge_not_built(measurements)
    if measurements.differences is not None:
        return _judge_found(measurements, measurements.differences)
    probe = measurements.probe
    reasons = [
        *package_reasons(
            measurements.expected,
            probe.packages,
            measurements.built_here,
            measurements.from_repositories,
        ),
        *file_reasons(measurements.patched, probe.files),
        *_import_reasons(measurements.patched, probe.patched or ()),
        *_module_reasons(probe.modules, measurements),
        *_device_reasons(measurements.requested_device, probe.device),
    ]
    if reasons:
        return Judgement(status=Status.FAIL, reasons=tuple(reasons))
    packages, files = len(probe.packages), len(measurements.patched)
    reasons.append(f"{packages} packages have their locked versions, {files} files are patched.")
    if measurements.container is not None and probe.not_recorded == ():
        reasons.append("All files of the image are as their packages and patches say.")
    elif measurements.files:
        reasons.append(f"{measurements.files.count} files are as their packages and patches say.")
    if built := measurements.built_here:
        reasons.append(f"Built from source on this host: {', '.join(built)}.")
    if omitted := measurements.left_out:
        reasons.append(f"{len(omitted)} locked packages are not installed: {'; '.join(_by_reason(omitted))}.")
    return Judgement(status=Status.PASS, reasons=tuple(reasons))


def _judge_found(measurements: EnvironmentBuilt, differences: Sequence[str]) -> Judgement:
    """Pass if what was found has the versions of the cell as they were published."""
    probe = measurements.probe
    failed = [
        f"`import {name}` fails: {module.error.splitlines()[0]}"
        for name, module in probe.modules.items()
        if isinstance(module, FailedImport)
    ]
    reasons = [*differences, *failed, *_device_reasons(measurements.requested_device, probe.device)]
    if reasons:
        return Judgement(status=Status.FAIL, reasons=tuple(reasons), remedies=(FOUND_REMEDY,))
    names = ", ".join(f"{name} {version}" for name, version in measurements.expected.items())
    return Judgement(status=Status.PASS, reasons=(f"Found as the cell has it, and not changed: {names}.",))


def _judge_not_built(measurements: EnvironmentNotBuilt) -> Judgement:
    step = measurements.step
    lines = [line.strip() for line in measurements.tail.splitlines() if line.strip()]
    return Judgement(
        # What this host lacks says nothing about the cell.
        status=Status.NOT_RUN if measurements.unsupported else Status.FAIL,
        reasons=(measurements.reason, *lines[-1:]),
        remedies=(measurements.remedy or REMEDIES[step],) if step in REMEDIES else (),
    )


def _by_reason(omitted: Mapping[str, str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, reason in omitted.items():
        names.setdefault(reason, []).append(name)
    return [f"{', '.join(group)} ({reason})" for reason, group in names.items()]


def package_reasons(
    expected: Mapping[str, str],
    found: Mapping[str, str],
    built: Collection[str],
    unversioned: Collection[str] = (),
) -> list[str]:
    """How the installed packages differ from the expected ones.

    built: packages that were built here. unversioned: packages whose version is not compared, because a build
    from a repository derives it from tags that a single commit does not have.
    """
    installed = {str(canonicalize_name(name)): version for name, version in found.items()}
    reasons = []
    for name, version in expected.items():
        if name not in installed:
            reasons.append(f"{name} {version} is locked but not installed.")
            continue
        if name in unversioned:
            continue
        # A package built here appends the target of its build to the version.
        comparable = installed[name].partition("+")[0] if name in built else installed[name]
        if not _same_version(comparable, version):
            reasons.append(f"{name} {installed[name]} is installed, but {version} is locked.")
    reasons += [
        f"{name} {installed[name]} is installed but not locked."
        for name in sorted(set(installed) - set(expected))
    ]
    return reasons


def _same_version(left: str, right: str) -> bool:
    try:
        return Version(left) == Version(right)
    except ValueError:  # InvalidVersion, or a number with thousands of digits
        return left == right


def file_reasons(patched: Mapping[str, str], on_disk: Mapping[str, str]) -> list[str]:
    """Which files are not the patched ones. Both mappings: path -> digest, "" for a missing file."""
    return [
        f"{name} is not the patched file{'' if on_disk.get(name) else ': it is missing'}."
        for name, digest in patched.items()
        if on_disk.get(name, "") != digest
    ]


def _import_reasons(files: Collection[str], patched: Sequence[PatchedFile]) -> list[str]:
    """Patched modules for which an import would load another file. files: all patched files."""
    if files and not patched:
        return ["Files are patched, but which of them an import loads was not asked."]
    return [
        f"`import {one.module}` loads {one.file or 'nothing'}, which is {one.state}."
        for one in patched
        if one.state not in ("patched", "removed")
    ]


def _module_reasons(
    modules: Mapping[str, ImportedModule | FailedImport], measurements: EnvironmentBuilt
) -> list[str]:
    wanted = modules_to_import(measurements.expected, measurements.requested_device.kind)
    reasons = [f"`import {name}` was not tried." for name in wanted if name not in modules]
    for name, module in modules.items():
        if isinstance(module, FailedImport):
            reasons.append(f"`import {name}` fails: {module.error.splitlines()[0]}")
        elif not module.file.startswith(measurements.site_packages):
            reasons.append(f"`import {name}` loads {module.file}, which is outside the environment.")
    return reasons


def _device_reasons(requested: CellDevice, probed: ProbedDevice) -> list[str]:
    if requested.kind == "cpu":
        return []
    reasons = []
    if probed.error:
        reasons.append(f"The device does not respond: {probed.error.splitlines()[0]}")
    elif probed.count < requested.count:
        reasons.append(f"The cell needs {requested.count} device(s) and sees {probed.count}.")
    elif probed.sum_of_ones != 4.0:
        reasons.append(f"The sum of four ones on the device is {probed.sum_of_ones}, not 4.0.")
    return [*reasons, *_runtime_reasons(requested, probed.runtime), *_cann_reasons(requested, probed)]


def _cann_reasons(requested: CellDevice, probed: ProbedDevice) -> list[str]:
    """Compares the CANN that the process loaded with that of the cell: evidence is for one CANN only."""
    if requested.kind != "npu" or not requested.cann or probed.runtime is Runtime.NONE:
        return []
    if not probed.cann:
        return [f"The cell is for CANN {requested.cann}; the version of the one in use could not be read."]
    if probed.cann.lower() != requested.cann.lower():
        return [f"The cell is for CANN {requested.cann}, but CANN {probed.cann} is in use."]
    return []


def _runtime_reasons(requested: CellDevice, runtime: Runtime) -> list[str]:
    """Compares the requested kind of device with the one that the CANN runtime shows (`harness.evidence`)."""
    if runtime is (Runtime.SIMULATED if requested.simulated else Runtime.CANN):
        return []
    expected = "a simulated" if requested.simulated else "a real"
    if runtime is Runtime.NONE:
        return [f"The cell needs {expected} device, but no CANN runtime reports a device."]
    return [
        f"The device is {'real' if runtime is Runtime.CANN else 'simulated'}; the cell needs {expected} one."
    ]
