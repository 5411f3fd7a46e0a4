"""What `npu-matrix advise` prints for a host, as JSON and as text."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.devices.host.host_findings import why_no_card
from harness.devices.host.host_inspection import HostReport
from harness.devices.host.soc import FAMILIES, build_family, is_driver_version
from harness.errors import InputError, Location, NothingSelectedError
from harness.matrix.model.definitions import Stack
from harness.matrix.version_matrix import Matrix
from harness.plan.feasibility.newest_versions import CheckProof
from harness.plan.feasibility.stack_advice import (
    Advice,
    AdviceRequest,
    RejectedStack,
    advise_stacks,
    stacks_of_authors,
)
from harness.plan.keys.facets import NPU_HOST_ARCHITECTURE
from harness.settings import Settings
from harness.workspace.adoption.advised_stack import add_stack
from harness.workspace.execution.host_advice import KnownStack, known_stacks, releases_on_index
from harness.workspace.execution.version_probe import parse_conditions
from harness.workspace.planning.host_wheels import HostWheel
from harness.workspace.planning.open_plan import inspect_this_host

MOST_REJECTED = 2
MOST_NAMES = 6
MOST_AUTHORS = 3
_AXES = ("verl", "vllm_ascend", "torch_npu", "cann", "soc", "device", "python")
_LEADING = ("verl", "vllm_ascend", "torch_npu", "python")
_DEFAULT_NEEDS = ("grpo", "vllm")
_ARCHITECTURES = {"arm64": "aarch64", "amd64": "x86_64"}


def describe_stacks(
    settings: Settings, matrix: Matrix, options: Mapping[str, Any]
) -> tuple[dict[str, object], list[str], bool]:
    """The advice for a host as JSON and as lines, and whether there is a stack."""
    request, driver = _request(matrix, options)
    ask = options["index"]
    newest = releases_on_index(matrix, ["verl", "vllm_ascend"]) if ask else {}

    def advised(wanted: AdviceRequest, most: int) -> tuple[Advice, tuple[KnownStack, ...]]:
        advice = advise_stacks(matrix, wanted, {"verl": newest.get("verl", [])})
        known, unfit = known_stacks(settings, matrix, advice.stacks, driver, most=most, ask_index=ask)
        return replace(advice, rejected=(*unfit, *advice.rejected)), known

    advice, known = advised(request, options["most"])
    other_python = advised(replace(request, python=""), 1)[1] if request.python and not known else ()
    again = _options(request, driver, options)
    commands = [_commands(one, again, elsewhere=not settings.has_own_matrix) for one in known]
    authors = stacks_of_authors(matrix, request)
    report: dict[str, object] = {
        "host": {
            "soc": request.soc,
            "cann": request.cann,
            "driver": driver or None,
            "python": request.python or None,
            "arch": request.arch or None,
            "device": request.device,
        },
        "needs": list(request.needs),
        "stacks": [_json(one, shown) for one, shown in zip(known, commands, strict=True)],
        "stacks_of_authors": [
            {"name": one.name, "title": one.title, "source": one.source, "axes": dict(one.axes)}
            for one in authors
        ],
        "with_other_python": [dict(one.stack.values) for one in other_python],
        "rejected": [
            {"axes": {axis: str(version) for axis, version in one.axes.items()}, "reasons": list(one.reasons)}
            for one in advice.rejected
        ],
        "newest_on_index": {axis: str(found[0]) for axis, found in newest.items() if found},
    }
    lines = list(_lines(request, driver, advice, known, commands, authors))
    for one in other_python:
        values = [f"{axis} {one.stack.values[axis]}" for axis in _LEADING if axis in one.stack.values]
        lines.append(f"without --python {request.python} there is a stack: {', '.join(values)}")
    if options["add"]:
        lines = [_add(settings, matrix, options["add"], known)]
    return report, lines, bool(known or authors)


def _request(matrix: Matrix, options: Mapping[str, Any]) -> tuple[AdviceRequest, str]:
    """What is asked for, and the driver; what is not given is read from this host."""
    missing = [axis for axis in _AXES if axis not in matrix.axes]
    if missing:
        raise InputError(
            f"this matrix has no axis {missing[0]!r}, so it says nothing about hosts",
            where=Location(matrix.file),
            fix="use the shipped matrix, or include it: include: npu-matrix:VERSION",
        )
    conditions = parse_conditions(matrix, options["given"])
    host = inspect_this_host() if not (options["soc"] and options["cann"] and options["driver"]) else None
    values = {
        "soc": options["soc"] or (host.soc or host.pci_soc if host else ""),
        "cann": options["cann"] or (host.cann if host else ""),
    }
    for name, value in values.items():
        if not value:
            raise InputError(
                f"this host has no {matrix.axes[name].title} that can be recognised",
                why=why_no_card(host) if host and name == "soc" else "",
                fix=f"say which one the stack is for: --{name} VALUE, for example --soc a2 --cann 8.5.0",
            )
        try:
            matrix.axes[name].parse(value)
        except ValueError as error:
            raise InputError(f"--{name}: {error}") from None
    values["soc"] = _soc(matrix, values["soc"])
    if options["driver"] and not is_driver_version(options["driver"]):
        raise InputError(
            f"--driver: {options['driver']!r} is not a driver version, such as 25.5.0 or 26.0.rc1"
        )
    if options["python"]:
        try:
            matrix.axes["python"].parse(options["python"])
        except ValueError as error:
            raise InputError(f"--python: {error}") from None
    needs = [part.strip() for word in options["needs"] for part in word.split(",") if part.strip()]
    request = AdviceRequest(
        **values,
        device=options["device"] or "npu",
        python=options["python"] or "",
        arch=""
        if options["device"] == "sim"
        else _arch(matrix, options["arch"], None if options["soc"] or options["cann"] else host),
        needs=tuple(dict.fromkeys(needs)) or _DEFAULT_NEEDS,
        conditions=conditions,
    )
    return request, options["driver"] or (host.driver if host else "")


def _arch(matrix: Matrix, wanted: str, host: HostReport | None) -> str:
    """The architecture if it is not that of stacks without this axis: as given, or of a host with NPUs."""
    own = platform.machine() if host and host.soc else ""
    given = (wanted or own).lower()
    arch = _ARCHITECTURES.get(given, given)
    if arch in ("", NPU_HOST_ARCHITECTURE):
        return ""
    known = matrix.axes["arch"].values if "arch" in matrix.axes else {}
    if arch not in known:
        raise InputError(
            f"--arch: {given!r} is no architecture that a stack of this matrix is for",
            fix=f"one of: {', '.join(known) or NPU_HOST_ARCHITECTURE}",
        )
    return arch


def _soc(matrix: Matrix, given: str) -> str:
    """The SoC family of the matrix for its name in any case, or for a chip as npu-smi prints it."""
    known = matrix.axes["soc"].values
    family = given.lower() if given.lower() in known else build_family(given)
    if family in known:
        return family
    asked = family or given.lower()
    if family or asked in {name for _chips, name in FAMILIES}:
        raise NothingSelectedError(
            f"no stack of this matrix is for {asked}, and no table that it follows lists one",
            why=f"it has stacks for {', '.join(known)}",
            fix="read the guide of this hardware in vllm-ascend's documentation; to check a stack from "
            "there, add the family to the axis `soc` in matrix.yaml, and the stack with its source",
        )
    raise InputError(
        f"--soc: {given!r} is no known chip or family",
        fix=f"one of: {', '.join(known)}, or a chip as npu-smi prints it, such as 910B3 or 910_9392",
    )


def _lines(
    request: AdviceRequest,
    driver: str,
    advice: Advice,
    known: tuple[KnownStack, ...],
    commands: Sequence[Sequence[str]],
    authors: Sequence[Stack],
) -> Iterator[str]:
    yield (
        f"for {request.soc}, CANN {request.cann}, driver {driver or 'not known'}, "
        f"device {request.device}{f' on {request.arch}' if request.arch else ''}, "
        f"{', '.join(request.needs)}:"
    )
    if not known:
        yield "  no stack: every combination is excluded, or none is published for this CANN"
    for number, one in enumerate(known, start=1):
        yield ""
        yield f"{number}. {', '.join(f'{axis} {value}' for axis, value in one.stack.values.items())}"
        yield f"   documents: {_publication(one)}"
        yield f"   evidence: {_evidence(one, request.device)}"
        if one.failed:
            yield from (f"   failed: {_check(check)}" for check in one.failed)
        yield from (f"   known failure: {text}" for text in one.expected)
        yield f"   package index: {_index(one.on_index)}"
        for wheel in one.wheels:
            yield from _wheel(wheel, request.arch)
        for risk in one.risks:
            yield f"   risk: {risk.what}" + (f" ({risk.source})" if risk.source else "")
            if risk.mend:
                yield f"     do: {risk.mend}"
        yield "   to go on:"
        yield from (f"     {command}" for command in commands[number - 1])
    if authors:
        yield ""
        yield "stacks of matrix.yaml that their authors published for this SoC and CANN:"
        yield from (f"  {one.name}: {one.title} ({one.source})" for one in authors[:MOST_AUTHORS])
        if len(authors) > MOST_AUTHORS:
            yield f"  and {_first([one.name for one in authors[MOST_AUTHORS:]])}"
        yield f"  what is known of one: npu-matrix explain {authors[0].name}"
    for rejected in advice.rejected[:MOST_REJECTED]:
        yield ""
        yield from _rejection(rejected)
    if len(advice.rejected) > MOST_REJECTED:
        more = len(advice.rejected) - MOST_REJECTED
        yield f"{more} more newer combinations are excluded; --json lists them"


def _wheel(wheel: HostWheel, arch: str) -> Iterator[str]:
    """How to install the wheel for this NPU, on this machine architecture if it is known."""
    for one in wheel.variants:
        if not arch or one.is_for(arch):
            yield (
                f"   wheel of {wheel.package} for this NPU: variant {one.label}, which pip and uv install "
                "only under its name without the label:"
            )
            yield from (f"     {command}" for command in one.installation)


def _publication(one: KnownStack) -> str:
    tables = sorted({f"{statement.table} ({statement.row})" for statement in one.stack.supported_by})
    return f"{one.stack.level.value}; agrees with {', '.join(tables) or 'none'}"


def _evidence(one: KnownStack, device: str) -> str:
    kind = "hardware" if device == "npu" else "the simulated device"
    if one.cell is None:
        return f"none: no cell of the matrix has these versions, so no check was ever run, also not on {kind}"
    passed = ", ".join(_check(check) for check in one.passed) or "no check passed"
    strongest = "hardware" if device == "npu" else "simulated"
    has = any(check.evidence and check.evidence.value == strongest for check in one.passed)
    never = _first(list(one.never_tried))
    return f"{passed}; never tried: {never or 'nothing'}" + ("" if has else f"; nothing passed on {kind}")


def _check(check: CheckProof) -> str:
    evidence = check.evidence.value if check.evidence else "no evidence"
    reasons = (
        f": {check.reasons[0]}" if check.reasons and check.status and check.status.value != "pass" else ""
    )
    return f"{check.check} {check.status.value if check.status else 'not-run'} ({evidence}){reasons}"


def _index(found: Mapping[str, bool | None]) -> str:
    if not any(value is not None for value in found.values()):
        return "not asked, or it did not respond"
    missing = [name for name, value in found.items() if value is False]
    unknown = [name for name, value in found.items() if value is None]
    parts = [f"lacks {', '.join(missing)}: build it from source or use the vendor's index"] if missing else []
    parts += [f"did not respond for {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts) or "has all packages"


def _first(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _commands(one: KnownStack, again: Sequence[str], *, elsewhere: bool) -> list[str]:
    """Three commands: test the stack, see what is known of it, and export it.

    again: the options of this command. elsewhere: this folder has no matrix.yaml, so nothing runs in it.
    """
    if one.cell is not None:
        profile = "" if one.profile == "default" else f" --profile {one.profile}"
        explain = f"npu-matrix{profile} explain {one.cell.id}"
        return [
            *(["npu-matrix init"] if elsewhere else []),
            f"npu-matrix{profile} run --only {one.cell.id}",
            *([] if elsewhere else [explain]),
            f"npu-matrix{profile} lock {one.cell.id} --export dockerfile --output build",
        ]
    name = stack_name(one.stack.values)
    return [
        shlex.join(["npu-matrix", "advise", *again, "--add", name]),
        f"npu-matrix run --only {name}",
        f"npu-matrix lock {name} --export dockerfile --output build",
    ]


def _options(request: AdviceRequest, driver: str, options: Mapping[str, Any]) -> list[str]:
    """The options that give this advice again, also on another host."""
    said = {"--soc": request.soc, "--cann": request.cann, "--driver": driver}
    said |= {"--python": request.python, "--arch": request.arch}
    words = [word for option, value in said.items() if value for word in (option, value)]
    words += ["--need", ",".join(request.needs)] if options["needs"] else []
    words += ["--device", request.device] if request.device != "npu" else []
    words += [word for condition in options["given"] for word in ("--with", condition)]
    words += ["--most", str(options["most"])]
    return words + ([] if options["index"] else ["--no-index"])


def _add(settings: Settings, matrix: Matrix, name: str, known: Sequence[KnownStack]) -> str:
    """Add the advised stack of this name to matrix.yaml, and say so."""
    found = {stack_name(one.stack.values): one.stack.values for one in known}
    if name not in found:
        raise InputError(
            f"--add: the advice has no stack {name!r}",
            fix=f"one of: {', '.join(found) or 'none'}; --most shows more stacks",
        )
    return add_stack(settings, matrix, name, found[name])


def stack_name(values: Mapping[str, str]) -> str:
    """A name for a stack: its leading versions, CANN and SoC."""
    named = {"verl": "verl", "vllm_ascend": "vllm-ascend"}
    leading = [f"{word}-{values[axis]}" for axis, word in named.items() if axis in values]
    words = [*leading, f"cann-{values['cann']}", values["soc"]]
    return "-".join(words).lower().replace(".", "-").replace("+", "-")


def _rejection(rejected: RejectedStack) -> Iterator[str]:
    leading = ", ".join(
        f"{axis} {rejected.axes[axis]}"
        for axis in ("verl", "vllm_ascend", "torch_npu")
        if axis in rejected.axes
    )
    yield f"newer, but excluded: {leading}"
    yield from (f"   {reason}" for reason in rejected.reasons[:2])


def _json(one: KnownStack, commands: Sequence[str]) -> dict[str, object]:
    return {
        "axes": one.stack.values,
        "publication": one.stack.level.value,
        "agrees_with": [str(statement) for statement in one.stack.supported_by],
        "wheels": [
            {
                "package": wheel.package,
                "version": wheel.version,
                "variant": wheel.variants[0].label,
                "files": {one.name: one.address for one in wheel.variants},
                "installation": {one.name: list(one.installation) for one in wheel.variants},
            }
            for wheel in one.wheels
        ],
        "departs_from": [str(statement) for statement in one.stack.departs_from],
        "overruled": [str(statement) for statement in one.stack.overruled],
        "undocumented": list(one.stack.undocumented),
        "cell": one.cell.id if one.cell else None,
        "passed": [_check_json(check) for check in one.passed],
        "failed": [_check_json(check) for check in one.failed],
        "never_tried": list(one.never_tried) if one.cell else None,
        "expected_failures": list(one.expected),
        "risks": [{"what": risk.what, "do": risk.mend, "source": risk.source} for risk in one.risks],
        "on_index": dict(one.on_index),
        "commands": list(commands),
    }


def _check_json(check: CheckProof) -> dict[str, object]:
    return {
        "check": check.check,
        "status": check.status.value if check.status else None,
        "evidence": check.evidence.value if check.evidence else None,
        "reasons": list(check.reasons),
    }
