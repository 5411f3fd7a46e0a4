"""Compare the uses of torch_npu in a package with the operators and names of one torch_npu version."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.compat.operators.operator_measurements import (
    ChangedDefault,
    CheckedConsumer,
    OperatorsMeasured,
    PackageVersion,
    TorchNpuMisuse,
)
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.surface.operator_schema import (
    OperatorSchemas,
    SchemaChange,
    read_operators,
    schema_changes,
)
from harness.compat.uses.analysis_cache import AnalysisCache
from harness.compat.uses.analysis_process import serve
from harness.compat.uses.operator_calls import OperatorCall
from harness.compat.uses.package_pairs import Package
from harness.compat.uses.uncalled_functions import uncalled_functions
from harness.compat.uses.use import Use
from harness.compat.uses.use_check import check_uses
from harness.sources.packages.release_sources import release_entry_points

OPERATOR_PREFIXES = ("npu_", "_npu_")
# Folders with code for other chips than the A2 and A3 of the matrix (vllm-ascend, `is_310p()`).
OTHER_CHIPS = ("_310p",)


@dataclass(frozen=True, kw_only=True)
class TorchNpuConsumer:
    """A package that uses torch_npu.

    pinned: the torch_npu version that it requires, or "".
    pinned_sources: the sources of the pinned version; None when it is the version under test, or is not
    available.
    """

    package: Package
    pinned: str
    pinned_sources: Path | None


@dataclass(frozen=True, kw_only=True)
class OperatorRequest:
    """What to analyse: a torch_npu with its sources, and its consumers.

    not_read: as in `OperatorsMeasured`. cache: the cache folder of all checks. code: as in `AnalysisCache`.
    """

    torch_npu: PackageVersion
    sources: Path
    consumers: tuple[TorchNpuConsumer, ...]
    not_read: tuple[str, ...]
    cache: Path
    code: str


@dataclass(frozen=True, kw_only=True)
class TorchNpuUses:
    """What a package uses of torch_npu: operator calls, and names in modules such as `torch_npu.npu`.

    entry_points: the text of the package's file of that name.
    """

    calls: tuple[OperatorCall, ...]
    names: tuple[Use, ...]
    surface: ApiSurface
    entry_points: str = ""


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
    return TorchNpuUses(
        calls=package_uses.calls,
        names=tuple(names),
        surface=consumer.surface,
        entry_points=release_entry_points(consumer.file),
    )


def find_misuses(consumer: str, uses: TorchNpuUses, torch_npu: TorchNpuApi) -> tuple[TorchNpuMisuse, ...]:
    """Uses that this torch_npu does not support, sorted by file and line."""
    found = [*check_calls(consumer, uses.calls, torch_npu.operators)]
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
    uncalled = uncalled_functions(
        uses.surface, {use.file for use in found if not use.guarded}, uses.entry_points
    )
    found = [
        replace(use, guarded=True) if any(use.line in lines for lines in uncalled.get(use.file, ())) else use
        for use in found
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
        and not call.arguments.unpacks_keywords
        and not _passes_argument(call, change.argument, torch_npu.operators)
    )


def _is_for_other_chip(file: str) -> bool:
    return any(folder in file.split("/") for folder in OTHER_CHIPS)


def _passes_argument(call: OperatorCall, argument: str, operators: OperatorSchemas) -> bool:
    if argument in call.arguments.keywords or call.arguments.unpacks_positional:
        return True
    return any(
        argument in overload.signature.positional[: call.arguments.positional]
        for overload in operators.schemas.get(call.operator, ())
    )


def check_calls(
    consumer: str, calls: tuple[OperatorCall, ...], operators: OperatorSchemas
) -> Iterator[TorchNpuMisuse]:
    """Calls that fit no overload, and missing operators; names that are defined at run time are skipped."""
    for call in calls:
        overloads = operators.schemas.get(call.operator)
        if overloads is None:
            if call.operator in operators.unsigned or not call.operator.startswith(OPERATOR_PREFIXES):
                continue
            kind, text = "missing", f"{call.operator} is not in this torch_npu"
        elif call.arguments.unpacks_positional or call.arguments.unpacks_keywords:
            continue
        else:
            problems = [overload.signature.problem(call.arguments) for overload in overloads]
            if not all(problems):
                continue
            kind, text = "arguments", f"{call.operator} {problems[0]}"
        yield TorchNpuMisuse(
            consumer=consumer,
            kind=kind,
            name=call.operator,
            file=call.file,
            line=call.line,
            text=text,
            guarded=call.guarded or _is_for_other_chip(call.file),
        )


def examine(request: OperatorRequest) -> OperatorsMeasured:
    """Check each consumer in the request against torch_npu, and against the torch_npu that it pins."""
    torch_npu = read_torch_npu_api(request.torch_npu.version, request.sources)
    cache = AnalysisCache(folder=request.cache / "pairs", code=request.code)
    consumers: list[CheckedConsumer] = []
    misuses: list[TorchNpuMisuse] = []
    changed: list[ChangedDefault] = []
    for consumer in request.consumers:
        package, pinned = consumer.package, consumer.pinned
        uses = read_torch_npu_uses(package, cache)
        found = find_misuses(package.name, uses, torch_npu)
        if pinned == request.torch_npu.version:
            misuses += [replace(use, own=True) for use in found]
        elif consumer.pinned_sources:
            pinned_api = read_torch_npu_api(pinned, consumer.pinned_sources)
            own = {(use.file, use.line, use.name) for use in find_misuses(package.name, uses, pinned_api)}
            misuses += [replace(use, own=(use.file, use.line, use.name) in own) for use in found]
            changed += find_changed_defaults(package.name, uses, pinned_api, torch_npu)
        else:
            misuses += found
        consumers.append(
            CheckedConsumer(
                package=package.name, version=package.version, pinned=pinned, calls=len(uses.calls)
            )
        )
    return OperatorsMeasured(
        torch_npu=request.torch_npu,
        consumers=tuple(consumers),
        uses=tuple(misuses),
        silent=tuple(changed),
        not_read=request.not_read,
    )


if __name__ == "__main__":
    sys.exit(serve(OperatorRequest, examine, *sys.argv[1:]))
