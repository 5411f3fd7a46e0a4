"""Compare the uses of torch_npu in a package with the operators and names of one torch_npu version."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.compat.operators.operator_measurements import ChangedDefault, CheckedConsumer, TorchNpuMisuse
from harness.compat.operators.operator_schema import (
    OperatorSchemas,
    SchemaChange,
    read_operators,
    schema_changes,
)
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.analysis_process import serve
from harness.compat.uses.operator_calls import OperatorCall
from harness.compat.uses.package_pairs import Package
from harness.compat.uses.use import Use
from harness.compat.uses.use_check import check_uses

OPERATOR_PREFIXES = ("npu_", "_npu_")
# Folders with code for other chips than the A2 and A3 of the matrix (vllm-ascend, `is_310p()`).
OTHER_CHIPS = ("_310p",)


@dataclass(frozen=True, kw_only=True)
class ConsumerFile:
    """A consumer and the zip with its sources.

    pinned: the torch_npu version that it requires, or "". pinned_file: the sources of that version, or ""
    when they are not available or it is the version under test.
    """

    package: str
    version: str
    file: str
    pinned: str
    pinned_file: str


@dataclass(frozen=True, kw_only=True)
class OperatorRequest:
    """What to analyse: a torch_npu and its consumers. cache, code: of the `AnalysisCache`."""

    version: str
    file: str
    consumers: tuple[ConsumerFile, ...]
    cache: str
    code: str


@dataclass(frozen=True, kw_only=True)
class OperatorResult:
    """What the analysis found; see `OperatorsMeasured`."""

    consumers: tuple[CheckedConsumer, ...]
    uses: tuple[TorchNpuMisuse, ...]
    silent: tuple[ChangedDefault, ...]


@dataclass(frozen=True, kw_only=True)
class OperatorFinding:
    """A call of an operator that is missing or has another signature."""

    kind: str
    operator: str
    file: str
    line: int
    text: str
    guarded: bool


@dataclass(frozen=True, kw_only=True)
class TorchNpuUses:
    """What a package uses of torch_npu: operator calls, and names in modules such as `torch_npu.npu`."""

    calls: tuple[OperatorCall, ...]
    names: tuple[Use, ...]
    surface: ApiSurface


@dataclass(frozen=True, kw_only=True)
class TorchNpuApi:
    """The operators and the Python API of a torch_npu, read from its wheel."""

    version: str
    operators: OperatorSchemas
    surface: ApiSurface


def read_torch_npu_api(version: str, sources: Path) -> TorchNpuApi:
    """Read a torch_npu; InputError when the sources are not those of a torch_npu."""
    return TorchNpuApi(version=version, operators=read_operators(sources), surface=ApiSurface(sources))


def read_torch_npu_uses(consumer: Package, cache: AnalysisCache) -> TorchNpuUses:
    """Read a consumer; InputError when its sources cannot be read."""
    names = []
    package_uses = consumer.uses(cache)
    for use in package_uses.uses:
        target = use.target
        if target == "torch.npu" or target.startswith("torch.npu."):
            target = f"torch_npu.npu{target.removeprefix('torch.npu')}"
        # Names directly in torch_npu are operators, or are defined at run time by its C extension.
        if target.startswith("torch_npu.") and target.count(".") > 1:
            names.append(replace(use, target=target))
    return TorchNpuUses(calls=package_uses.calls, names=tuple(names), surface=consumer.surface)


def find_misuses(consumer: str, uses: TorchNpuUses, torch_npu: TorchNpuApi) -> tuple[TorchNpuMisuse, ...]:
    """Uses that this torch_npu does not support, sorted by place."""
    found = [
        TorchNpuMisuse(
            consumer=consumer,
            kind=finding.kind,
            name=finding.operator,
            file=finding.file,
            line=finding.line,
            text=finding.text,
            guarded=finding.guarded or _is_for_other_chip(finding.file),
        )
        for finding in check_calls(uses.calls, torch_npu.operators)
    ]
    provider = {"torch_npu": (f"torch_npu {torch_npu.version}", torch_npu.surface)}
    # A name directly in torch_npu that is not a module may be defined by the C extension during the import.
    names = [use for use in uses.names if torch_npu.surface.has_module(".".join(use.target.split(".")[:2]))]
    found += [
        TorchNpuMisuse(
            consumer=consumer,
            kind=finding.kind,
            name=finding.name,
            file=finding.file,
            line=finding.line,
            text=finding.text,
            guarded=bool(finding.guarded) or _is_for_other_chip(finding.file),
        )
        for finding in check_uses(names, provider, uses.surface)
        if finding.kind not in ("patch", "dead-patch")
    ]
    return tuple(sorted(found, key=lambda use: (use.file, use.line, use.name)))


def find_changed_defaults(
    consumer: str, uses: TorchNpuUses, made_for: TorchNpuApi, torch_npu: TorchNpuApi
) -> tuple[ChangedDefault, ...]:
    """Calls that use a default which differs between the two versions."""
    changed: dict[str, list[SchemaChange]] = {}
    for change in schema_changes(made_for.operators, torch_npu.operators):
        if change.silent:
            changed.setdefault(change.name, []).append(change)
    return tuple(
        ChangedDefault(
            consumer=consumer, name=call.operator, file=call.file, line=call.line, text=change.text
        )
        for call in uses.calls
        for change in changed.get(call.operator, ())
        if not _is_for_other_chip(call.file)
        and not call.unpacks_keywords
        and not _passes_argument(call, change.argument, torch_npu.operators)
    )


def _is_for_other_chip(file: str) -> bool:
    return any(folder in file.split("/") for folder in OTHER_CHIPS)


def _passes_argument(call: OperatorCall, argument: str, operators: OperatorSchemas) -> bool:
    if argument in call.keywords or call.positional is None:
        return True
    return any(
        argument in [a.name for a in overload.arguments if not a.keyword_only][: call.positional]
        for overload in operators.schemas.get(call.operator, ())
    )


def check_calls(calls: tuple[OperatorCall, ...], operators: OperatorSchemas) -> tuple[OperatorFinding, ...]:
    """Calls that fit no overload, and missing operators; names that are defined at run time are skipped."""
    return tuple(finding for call in calls if (finding := _finding(call, operators)))


def _finding(call: OperatorCall, operators: OperatorSchemas) -> OperatorFinding | None:
    overloads = operators.schemas.get(call.operator)
    if overloads is None:
        if call.operator in operators.unsigned or not call.operator.startswith(OPERATOR_PREFIXES):
            return None
        kind, text = "missing", f"{call.operator} is not in this torch_npu"
    elif call.positional is None or call.unpacks_keywords:
        return None
    else:
        problems = [overload.problem(call.positional, call.keywords) for overload in overloads]
        if not all(problems):
            return None
        kind, text = "arguments", f"{call.operator} {problems[0]}"
    return OperatorFinding(
        kind=kind, operator=call.operator, file=call.file, line=call.line, text=text, guarded=call.guarded
    )


def examine(request: OperatorRequest) -> OperatorResult:
    """Check each consumer in the request against torch_npu, and against the torch_npu that it pins."""
    torch_npu = read_torch_npu_api(request.version, Path(request.file))
    cache = AnalysisCache(folder=Path(request.cache) / "pairs", code=request.code)
    consumers: list[CheckedConsumer] = []
    misuses: list[TorchNpuMisuse] = []
    changed: list[ChangedDefault] = []
    for item in request.consumers:
        package = Package(name=item.package, version=item.version, file=Path(item.file))
        uses = read_torch_npu_uses(package, cache)
        found: Sequence[TorchNpuMisuse] = find_misuses(item.package, uses, torch_npu)
        if item.pinned == request.version:
            found = [replace(use, own=True) for use in found]
        elif item.pinned_file:
            pinned = read_torch_npu_api(item.pinned, Path(item.pinned_file))
            own = {(use.file, use.line, use.name) for use in find_misuses(item.package, uses, pinned)}
            found = [replace(use, own=(use.file, use.line, use.name) in own) for use in found]
            changed += find_changed_defaults(item.package, uses, pinned, torch_npu)
        misuses += found
        consumers.append(
            CheckedConsumer(
                package=item.package, version=item.version, pinned=item.pinned, calls=len(uses.calls)
            )
        )
    return OperatorResult(consumers=tuple(consumers), uses=tuple(misuses), silent=tuple(changed))


if __name__ == "__main__":
    sys.exit(serve(OperatorRequest, examine, *sys.argv[1:]))
