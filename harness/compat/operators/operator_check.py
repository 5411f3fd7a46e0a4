"""Do the NPU operators and `torch.npu` names a cell's packages use exist in its torch_npu, as they are used?

A finding that a package also has with the torch_npu it was released with is its own defect and no matter of
versions: it is said, and does not fail the cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.check import TaskContext
from harness.compat.operators.operator_calls import OperatorCall, check_calls
from harness.compat.operators.operator_schema import Operators, SchemaChange, read_operators, schema_changes
from harness.compat.surface.analysis_process import analyse
from harness.compat.surface.api_surface import Surface
from harness.compat.surface.release_sources import commit_sources, fetch_sources, required, tree_requirements
from harness.compat.uses.consumers import reading_code
from harness.compat.uses.package_pairs import Answers, Package
from harness.compat.uses.use import Reference
from harness.compat.uses.use_check import check_border
from harness.outcome import Evidence, Judgement, Measured, Outcome, Status
from harness.sources.git.mirrors import COMMIT_REMEDY, mirrors_folder
from harness.sources.packages.pip_download import ReleaseNotFoundError

PROVIDER = "torch-npu"
# Folders whose code runs on another chip than the A2 and A3 of the matrix (vllm-ascend, `is_310p()`).
OTHER_CHIPS = ("_310p",)
CONSUMERS = {"verl_tree": "verl", "vllm_ascend": "vllm-ascend"}


@dataclass(frozen=True, kw_only=True)
class Use:
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
class SilentChange:
    """A call that leaves an argument to a default that differs from the one it was made for."""

    consumer: str
    name: str
    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name}: {self.text}, and this call relies on it"


@dataclass(frozen=True, kw_only=True)
class Uses:
    """What a package uses of torch_npu: calls of operators, and names below `torch_npu.npu` and the like."""

    calls: tuple[OperatorCall, ...]
    names: tuple[Reference, ...]
    surface: Surface


@dataclass(frozen=True, kw_only=True)
class TorchNpu:
    """A torch_npu as far as its wheel tells: operators with signatures, and Python names."""

    version: str
    operators: Operators
    surface: Surface


def read_torch_npu(version: str, sources: Path) -> TorchNpu:
    """InputError when the sources are not those of a torch_npu."""
    return TorchNpu(version=version, operators=read_operators(sources), surface=Surface(sources))


def read_uses(consumer: Package, answers: Answers) -> Uses:
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
    return Uses(calls=reached.calls, names=tuple(found), surface=consumer.surface)


def misuses(consumer: str, uses: Uses, torch_npu: TorchNpu) -> tuple[Use, ...]:
    """Uses that this torch_npu does not bear, by place."""
    found = [
        Use(
            consumer=consumer,
            kind=finding.kind,
            name=finding.operator,
            file=finding.file,
            line=finding.line,
            text=finding.text,
            guarded=finding.guarded or _elsewhere(finding.file),
        )
        for finding in check_calls(uses.calls, torch_npu.operators)
    ]
    provider = {"torch_npu": (f"torch_npu {torch_npu.version}", torch_npu.surface)}
    # What stands directly below torch_npu and is no module may be made by its C part as it is imported.
    names = [use for use in uses.names if torch_npu.surface.has_module(".".join(use.target.split(".")[:2]))]
    found += [
        Use(
            consumer=consumer,
            kind=finding.kind,
            name=finding.name,
            file=finding.file,
            line=finding.line,
            text=finding.text,
            guarded=bool(finding.guarded) or _elsewhere(finding.file),
        )
        for finding in check_border(names, provider, uses.surface)
        if finding.kind not in ("patch", "dead-patch")
    ]
    return tuple(sorted(found, key=lambda use: (use.file, use.line, use.name)))


def silent_changes(
    consumer: str, uses: Uses, made_for: TorchNpu, torch_npu: TorchNpu
) -> tuple[SilentChange, ...]:
    """Calls that rely on a default which differs between the two versions."""
    changed: dict[str, list[SchemaChange]] = {}
    for change in schema_changes(made_for.operators, torch_npu.operators):
        if change.silent:
            changed.setdefault(change.name, []).append(change)
    return tuple(
        SilentChange(consumer=consumer, name=call.operator, file=call.file, line=call.line, text=change.text)
        for call in uses.calls
        for change in changed.get(call.operator, ())
        if not _elsewhere(call.file)
        and not call.open_keywords
        and not _gives(call, change.argument, torch_npu.operators)
    )


def _elsewhere(file: str) -> bool:
    return any(folder in file.split("/") for folder in OTHER_CHIPS)


def _gives(call: OperatorCall, argument: str, operators: Operators) -> bool:
    if argument in call.keywords or call.positional is None:
        return True
    return any(
        argument in [a.name for a in overload.arguments if not a.keyword_only][: call.positional]
        for overload in operators.schemas.get(call.operator, ())
    )


def pinned_torch_npu(sources: Path) -> str:
    """The exact torch_npu a release or commit requires, or ""."""
    for wanted in map(Requirement, (*required(sources), *tree_requirements(sources))):
        exact = [one.version for one in wanted.specifier if one.operator == "==" and "*" not in one.version]
        if canonicalize_name(wanted.name) == PROVIDER and exact:
            return exact[0]
    return ""


def run(ctx: TaskContext) -> Measured:
    """Hold verl's and vllm-ascend's uses against the facet `torch_npu`."""
    wanted = ctx.facets["torch_npu"]
    facts: dict[str, Any] = {"torch_npu": wanted, "consumers": [], "not_read": [], "uses": [], "silent": []}
    absent, sources = _sources(ctx, PROVIDER, wanted)
    if sources is None:
        return Measured(measurements={**facts, "not_read": [absent]}, evidence=Evidence.STATIC)
    consumers = []
    for facet, package in CONSUMERS.items():
        tree = ctx.facets[facet]
        if not tree["version"]:
            continue
        why, file = _sources(ctx, package, tree)
        if file is None:
            facts["not_read"].append(why)
            continue
        pinned = pinned_torch_npu(file)
        own = {"pinned": pinned, "pinned_file": _pinned(ctx, package, pinned, wanted["version"])}
        consumers.append({"package": package, "version": tree["version"], "file": str(file), **own})
    request = {
        "version": wanted["version"],
        "file": str(sources),
        "consumers": consumers,
        "cache": str(ctx.cache),
        "code": reading_code(),
    }
    answer = analyse(ctx, "npu_ops", request) if consumers else {}
    for use in answer.get("uses", ()):
        ctx.log(_said(use))
    return Measured(measurements={**facts, **answer}, evidence=Evidence.STATIC)


def examine(request: Mapping[str, Any]) -> dict[str, Any]:
    """What the consumers use wrongly, what of it with their own torch_npu too, and what changed silently."""
    torch_npu = read_torch_npu(request["version"], Path(request["file"]))
    answers = Answers(folder=Path(request["cache"]) / "pairs", code=request["code"])
    facts: dict[str, Any] = {"consumers": [], "uses": [], "silent": []}
    for consumer in request["consumers"]:
        package, pinned = consumer["package"], consumer["pinned"]
        file = Path(consumer["file"])
        uses = read_uses(Package(name=package, version=consumer["version"], file=file), answers)
        found: Sequence[Use] = misuses(package, uses, torch_npu)
        if pinned == request["version"]:
            found = [replace(use, own=True) for use in found]
        elif consumer["pinned_file"]:
            made_for = read_torch_npu(pinned, Path(consumer["pinned_file"]))
            own = {(use.file, use.line, use.name) for use in misuses(package, uses, made_for)}
            found = [replace(use, own=(use.file, use.line, use.name) in own) for use in found]
            changes = silent_changes(package, uses, made_for, torch_npu)
            facts["silent"] += [{**asdict(change), "place": str(change)} for change in changes]
        facts["uses"] += [asdict(use) for use in found]
        known = {name: consumer[name] for name in ("package", "version", "pinned")}
        facts["consumers"].append({**known, "calls": len(uses.calls)})
    return facts


def _pinned(ctx: TaskContext, package: str, pinned: str, version: str) -> str:
    """The sources of the torch_npu a package was made for, where that is another one; "" without any."""
    if not pinned or pinned == version:
        return ""
    try:
        return str(fetch_sources(PROVIDER, pinned, cache=ctx.cache, command=ctx.command))
    except ReleaseNotFoundError:
        ctx.log(f"{package} was made for torch_npu {pinned}, which is not on the index")
        return ""


def _sources(ctx: TaskContext, package: str, tree: Mapping[str, Any]) -> tuple[str, Path | None]:
    """The sources of a release or commit, or why there are none."""
    version = tree["version"]
    try:
        if tree["kind"] == "release":
            return "", fetch_sources(package, version, cache=ctx.cache, command=ctx.command)
    except ReleaseNotFoundError as error:
        return error.problems[0].what, None
    found = commit_sources(tree["commit"], cache=ctx.cache, mirrors=mirrors_folder())
    return f"{package} {version} is the commit {tree['commit'][:12]}, which is not at hand", found


def holds(outcome: Outcome) -> str:
    """An outcome without a commit no longer holds once there may be a mirror that has it."""
    commits = [text for text in outcome.measurements.get("not_read", ()) if "is the commit" in text]
    return "there is a folder of mirrors now" if commits and mirrors_folder() else ""


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Unguarded misuse and changed defaults fail, unless the package has them with its own torch_npu too.

    Not run as long as a package could not be read and nothing is wrong in the others.
    """
    version = measurements["torch_npu"]["version"]
    unguarded = [use for use in measurements["uses"] if not use["guarded"]]
    wrong = [use for use in unguarded if not use["own"]]
    reasons = [f"{_said(use)} ({use['consumer']} with torch_npu {version})." for use in wrong]
    reasons += [f"{change['place']}." for change in measurements["silent"]]
    failed = bool(reasons)
    unread = [f"Not looked at: {text}." for text in measurements["not_read"]]
    notes = [
        f"{_said(use)}, nor with the torch_npu that {use['consumer']} is made for."
        for use in unguarded
        if use["own"]
    ]
    looked = [f"{c['calls']} operator calls of {c['package']} looked at." for c in measurements["consumers"]]
    status = Status.FAIL if failed else Status.NOT_RUN if unread else Status.PASS
    remedies = []
    if failed:
        pins = {c["package"]: c["pinned"] for c in measurements["consumers"] if c["pinned"]}
        remedies = [f"{package} is made for torch_npu {pinned}." for package, pinned in pins.items()]
        remedies = remedies or ["Choose a torch_npu that has these operators, or keep clear of this code."]
    elif unread:
        remedies = [COMMIT_REMEDY]
    order = [*reasons, *unread, *notes] if failed else [*unread, *looked, *notes]
    return Judgement(status=status, reasons=tuple(order), remedies=tuple(remedies))


def _said(use: Mapping[str, Any]) -> str:
    return f"{use['file']}:{use['line']}: {use['text']}"
