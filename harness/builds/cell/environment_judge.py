"""What a built environment's measurements say: is what is in it what was locked and patched?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.evidence import Runtime
from harness.outcome import Judgement, Status

REMEDIES = {
    "interpreter": "Install that Python (`uv python install` is one way), or choose another for the cell.",
    "engine": "Run on a host that fits; `npu-matrix doctor` says what this one can run.",
    "venv": "Look at the end of the log; the interpreter may lack its venv parts.",
    "install": "See the end of the log; `npu-matrix run --only CELL --check resolve` makes a new lock.",
    "build": "See the end of the log: the build of the package says what it lacks.",
    "patch": "Make the patch again for this version: `npu-matrix patches rebase`.",
    "runtime": "Choose a torch_npu wheel for this machine's architecture.",
    "probe": "Look at the end of the log: the interpreter of the cell itself could not run.",
}


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Passes when every locked package is there at its version, every patched file is the patched one, the
    modules import, and the device answers."""
    if not measurements["built"]:
        step = measurements["step"]
        status = Status.UNSUPPORTED if measurements["unsupported"] else Status.FAIL
        reasons = [measurements["reason"], *_last_line(measurements["tail"])]
        return Judgement(
            status=status, reasons=tuple(reasons), remedies=(REMEDIES[step],) if step in REMEDIES else ()
        )
    probe = measurements["probe"]
    reasons = [
        *_package_reasons(measurements["expected"], probe["packages"], measurements.get("built_here", ())),
        *_file_reasons(measurements["patched"], probe["files"]),
        *_import_reasons(probe.get("patched") or ()),
        *_module_reasons(probe["modules"], measurements["site_packages"]),
        *_device_reasons(measurements["requested_device"], probe["device"]),
    ]
    if reasons:
        return Judgement(status=Status.FAIL, reasons=tuple(reasons))
    packages, files = len(probe["packages"]), len(measurements["patched"])
    said = [f"{packages} packages as locked, {files} patched files as patched."]
    if built := measurements.get("built_here"):
        said.append(f"Built here from source: {', '.join(built)}.")
    if missing := measurements.get("left_out"):
        said.append(f"{len(missing)} locked packages were left out: {'; '.join(_by_reason(missing))}.")
    return Judgement(status=Status.PASS, reasons=tuple(said))


def _by_reason(left_out: Mapping[str, str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        names.setdefault(reason, []).append(name)
    return [f"{', '.join(group)} ({reason})" for reason, group in names.items()]


def _package_reasons(
    expected: Mapping[str, str], found: Mapping[str, str], built: Sequence[str]
) -> list[str]:
    there = {str(canonicalize_name(name)): version for name, version in found.items()}
    reasons = []
    for name, version in expected.items():
        if name not in there:
            reasons.append(f"{name} {version} is locked and not installed.")
        elif not _same(there[name].partition("+")[0] if name in built else there[name], version):
            reasons.append(f"{name} is {there[name]}, locked is {version}.")
    reasons += [
        f"{name} {there[name]} is installed and not locked." for name in sorted(set(there) - set(expected))
    ]
    return reasons


def _same(left: str, right: str) -> bool:
    try:
        return Version(left) == Version(right)
    except InvalidVersion:
        return left == right


def _file_reasons(patched: Mapping[str, str], on_disk: Mapping[str, str]) -> list[str]:
    return [
        f"{name} is not the patched file{'' if on_disk.get(name) else ': it is missing'}."
        for name, digest in patched.items()
        if on_disk.get(name, "") != digest
    ]


def _import_reasons(patched: Sequence[Mapping[str, Any]]) -> list[str]:
    """Files that are as patched on disk and yet not what would be imported."""
    return [
        f"`import {one['module']}` takes {one['file'] or 'nothing'}, which is {one['state']}."
        for one in patched
        if one["state"] not in ("patched", "removed")
    ]


def _module_reasons(modules: Mapping[str, Mapping[str, Any]], site_packages: str) -> list[str]:
    reasons = []
    for name, facts in modules.items():
        if "error" in facts:
            reasons.append(f"`import {name}` fails: {facts['error'].splitlines()[0]}")
        elif not facts["file"].startswith(site_packages):
            reasons.append(f"`import {name}` takes {facts['file']}, which is outside the environment.")
    return reasons


def _device_reasons(requested: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    if requested["kind"] == "cpu":
        return []
    reasons = []
    if "error" in found:
        reasons.append(f"The device does not answer: {found['error'].splitlines()[0]}")
    elif found["count"] < int(requested.get("count") or 1):
        reasons.append(f"The cell wants {requested.get('count') or 1} device(s) and sees {found['count']}.")
    elif found.get("sum_of_ones") != 4.0:
        reasons.append(f"The device adds four ones to {found.get('sum_of_ones')}.")
    return [*reasons, *_realness_reasons(requested["kind"], found)]


def _realness_reasons(requested: str, found: Mapping[str, Any]) -> list[str]:
    """A device is real only if it is shown to be: see `harness.evidence`."""
    seen = found.get("runtime", Runtime.NONE)
    if seen == (Runtime.SIMULATED if requested == "sim" else Runtime.CANN):
        return []
    wanted = "a simulated" if requested == "sim" else "a real"
    if seen == Runtime.NONE:
        return [f"Asked for was {wanted} device, and no CANN runtime says that it has one."]
    return [f"The device is {'real' if seen == Runtime.CANN else 'simulated'}, asked for was {wanted} one."]


def _last_line(tail: str) -> list[str]:
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return lines[-1:]
