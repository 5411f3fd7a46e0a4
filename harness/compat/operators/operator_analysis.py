"""Compare a package's uses of torch_npu with the operators and names of one torch_npu."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

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
# Folders whose code runs on another chip than the A2 and A3 of the matrix (vllm-ascend, `is_310p()`).
OTHER_CHIPS = ("_310p",)


@dataclass(frozen=True, kw_only=True)
class OperatorFinding:
    """A call that this torch_npu does not have or does not understand."""

    kind: str
    operator: str
    file: str
    line: int
    text: str
    guarded: bool


@dataclass(frozen=True, kw_only=True)
class TorchNpuMisuse:
    """A use that this torch_npu does not bear.

    own: the package has it with its own torch_npu too. guarded: it stands behind a test or in a try, or runs
    on other chips only.
    """

    consumer: str
    kind: str
    name: str
    file: str
    line: int
    text: str
    guarded: bool
    own: bool = False

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True, kw_only=True)
class ChangedDefault:
    """A call that leaves an argument to a default that differs from the one it was made for."""

    consumer: str
    name: str
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name}: {self.text}, and this call relies on it"


@dataclass(frozen=True, kw_only=True)
class TorchNpuUses:
    """What a package uses of torch_npu: calls of operators, and names below `torch_npu.npu` and the like."""

    calls: tuple[OperatorCall, ...]
    names: tuple[Use, ...]
    surface: ApiSurface


@dataclass(frozen=True, kw_only=True)
class TorchNpuApi:
    """A torch_npu as far as its wheel tells: operators with signatures, and Python names."""

    version: str
    operators: OperatorSchemas
    surface: ApiSurface


def read_torch_npu_api(version: str, sources: Path) -> TorchNpuApi:
    """InputError when the sources are not those of a torch_npu."""
    return TorchNpuApi(version=version, operators=read_operators(sources), surface=ApiSurface(sources))


def read_torch_npu_uses(consumer: Package, answers: AnalysisCache) -> TorchNpuUses:
    """InputError when the sources cannot be read."""
    found = []
    reached = consumer.reach(answers)
    for use in reached.uses:
        target = use.target
        if target == "torch.npu" or target.startswith("torch.npu."):
            target = f"torch_npu.npu{target.removeprefix('torch.npu')}"
        # Directly below torch_npu stand the operators, and names its C part makes at run time.
        if target.startswith("torch_npu.") and target.count(".") > 1:
            found.append(replace(use, target=target))
    return TorchNpuUses(calls=reached.calls, names=tuple(found), surface=consumer.surface)


def find_misuses(consumer: str, uses: TorchNpuUses, torch_npu: TorchNpuApi) -> tuple[TorchNpuMisuse, ...]:
    """Uses that this torch_npu does not bear, by place."""
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
    # What stands directly below torch_npu and is no module may be made by its C part as it is imported.
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
    """Calls that rely on a default which differs between the two versions."""
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
    """Calls that fit no overload, and operators that are not there; names set at run time are not judged."""
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


def examine(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the consumers use wrongly, what of it with their own torch_npu too, and what changed silently."""
    torch_npu = read_torch_npu_api(request["version"], Path(request["file"]))
    answers = AnalysisCache(folder=Path(request["cache"]) / "pairs", code=request["code"])
    facts: dict[str, Any] = {"consumers": [], "uses": [], "silent": []}
    for consumer in request["consumers"]:
        package, pinned = consumer["package"], consumer["pinned"]
        file = Path(consumer["file"])
        uses = read_torch_npu_uses(Package(name=package, version=consumer["version"], file=file), answers)
        found: Sequence[TorchNpuMisuse] = find_misuses(package, uses, torch_npu)
        if pinned == request["version"]:
            found = [replace(use, own=True) for use in found]
        elif consumer["pinned_file"]:
            made_for = read_torch_npu_api(pinned, Path(consumer["pinned_file"]))
            own = {(use.file, use.line, use.name) for use in find_misuses(package, uses, made_for)}
            found = [replace(use, own=(use.file, use.line, use.name) in own) for use in found]
            changes = find_changed_defaults(package, uses, made_for, torch_npu)
            facts["silent"] += [{**asdict(change), "place": str(change)} for change in changes]
        facts["uses"] += [asdict(use) for use in found]
        known = {name: consumer[name] for name in ("package", "version", "pinned")}
        facts["consumers"].append({**known, "calls": len(uses.calls)})
    return facts


if __name__ == "__main__":
    sys.exit(serve(examine, *sys.argv[1:]))
