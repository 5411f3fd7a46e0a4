"""What `npu-matrix advise` prints for a host, as JSON and as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from harness.errors import InputError, Location
from harness.matrix.version_matrix import Matrix
from harness.plan.feasibility.newest_versions import CheckProof
from harness.plan.feasibility.stack_advice import Advice, AdviceRequest, RejectedStack, advise_stacks
from harness.settings import Settings
from harness.workspace.execution.host_advice import KnownStack, known_stacks, releases_on_index
from harness.workspace.execution.version_probe import parse_conditions
from harness.workspace.planning.open_plan import inspect_this_host

MOST_REJECTED = 2
MOST_NAMES = 6
_AXES = ("verl", "vllm_ascend", "torch_npu", "cann", "soc", "device", "python")
_DEFAULT_NEEDS = ("grpo", "vllm")


def describe_stacks(
    settings: Settings, matrix: Matrix, options: Mapping[str, Any]
) -> tuple[dict[str, object], list[str], bool]:
    """The advice for a host as JSON and as lines, and whether there is a stack."""
    request, driver = _request(matrix, options)
    ask = options["index"]
    newest = releases_on_index(matrix, ["verl", "vllm_ascend"]) if ask else {}
    advice = advise_stacks(matrix, request, {"verl": newest.get("verl", [])})
    known = known_stacks(settings, matrix, advice.stacks[: options["most"]], driver, ask_index=ask)
    report: dict[str, object] = {
        "host": {
            "soc": request.soc,
            "cann": request.cann,
            "driver": driver or None,
            "python": request.python or None,
            "device": request.device,
        },
        "needs": list(request.needs),
        "stacks": [_json(one) for one in known],
        "rejected": [
            {"axes": {axis: str(version) for axis, version in one.axes.items()}, "reasons": list(one.reasons)}
            for one in advice.rejected
        ],
        "newest_on_index": {axis: str(found[0]) for axis, found in newest.items() if found},
    }
    return report, list(_lines(request, driver, advice, known)), bool(known)


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
        "soc": options["soc"] or (host.soc if host else ""),
        "cann": options["cann"] or (host.cann if host else ""),
    }
    for name, value in values.items():
        if not value:
            raise InputError(
                f"this host has no {matrix.axes[name].title} that can be recognised",
                fix=f"say which one the stack is for: --{name} VALUE, for example --soc a2 --cann 8.5.0",
            )
        try:
            matrix.axes[name].parse(value)
        except ValueError as error:
            raise InputError(f"--{name}: {error}") from None
    if values["soc"] not in matrix.axes["soc"].values:
        known = ", ".join(matrix.axes["soc"].values)
        raise InputError(f"unknown SoC family {values['soc']!r}", fix=f"one of: {known}")
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
        needs=tuple(dict.fromkeys(needs)) or _DEFAULT_NEEDS,
        conditions=conditions,
    )
    return request, options["driver"] or (host.driver if host else "")


def _lines(
    request: AdviceRequest,
    driver: str,
    advice: Advice,
    known: tuple[KnownStack, ...],
) -> Iterator[str]:
    yield (
        f"for {request.soc}, CANN {request.cann}, driver {driver or 'not known'}, device {request.device}, "
        f"{', '.join(request.needs)}:"
    )
    if not known:
        yield "  no stack: every combination is excluded by a rule, or none is published for this CANN"
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
            yield f"   wheel of {wheel.package} for this NPU (variant {wheel.variant}): pip install one of"
            yield from (f"     {address}" for address in wheel.files.values())
        for risk in one.risks:
            yield f"   risk: {risk.what}" + (f" ({risk.source})" if risk.source else "")
            if risk.mend:
                yield f"     do: {risk.mend}"
        yield "   to go on:"
        yield from (f"     {command}" for command in _commands(one))
    for rejected in advice.rejected[:MOST_REJECTED]:
        yield ""
        yield from _rejection(rejected)
    if len(advice.rejected) > MOST_REJECTED:
        more = len(advice.rejected) - MOST_REJECTED
        yield f"{more} more newer combinations are excluded; --json lists them"


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


def _commands(one: KnownStack) -> list[str]:
    """Three commands: test the stack, see what is known of it, and export it."""
    if one.cell is not None:
        profile = "" if one.profile == "default" else f" --profile {one.profile}"
        return [
            f"npu-matrix{profile} run --only {one.cell.id}",
            f"npu-matrix{profile} explain {one.cell.id}",
            f"npu-matrix{profile} lock {one.cell.id} --export dockerfile --output build",
        ]
    name = stack_name(one.stack.values)
    return [
        f"add to `stacks:` in matrix.yaml: {_entry(name, one.stack.values)}",
        f"npu-matrix run --only {shlex.quote(f'{name}*')}",
        f"npu-matrix lock {name} --export dockerfile --output build",
    ]


def stack_name(values: Mapping[str, str]) -> str:
    """A name for a stack: its leading versions, CANN and SoC."""
    named = {"verl": "verl", "vllm_ascend": "vllm-ascend"}
    leading = [f"{word}-{values[axis]}" for axis, word in named.items() if axis in values]
    words = [*leading, f"cann-{values['cann']}", values["soc"]]
    return "-".join(words).lower().replace(".", "-").replace("+", "-")


def _entry(name: str, values: Mapping[str, str]) -> str:
    axes = ", ".join(f"{axis}: {value}" for axis, value in values.items())
    return f"{name}: {{title: {name}, source: npu-matrix advise, axes: {{{axes}}}}}"


def _rejection(rejected: RejectedStack) -> Iterator[str]:
    leading = ", ".join(
        f"{axis} {rejected.axes[axis]}"
        for axis in ("verl", "vllm_ascend", "torch_npu")
        if axis in rejected.axes
    )
    yield f"newer, but excluded: {leading}"
    yield from (f"   {reason}" for reason in rejected.reasons[:2])


def _json(one: KnownStack) -> dict[str, object]:
    return {
        "axes": one.stack.values,
        "publication": one.stack.level.value,
        "agrees_with": [str(statement) for statement in one.stack.supported_by],
        "wheels": [
            {
                "package": wheel.package,
                "version": wheel.version,
                "variant": wheel.variant,
                "files": dict(wheel.files),
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
        "commands": _commands(one),
    }


def _check_json(check: CheckProof) -> dict[str, object]:
    return {
        "check": check.check,
        "status": check.status.value if check.status else None,
        "evidence": check.evidence.value if check.evidence else None,
        "reasons": list(check.reasons),
    }
