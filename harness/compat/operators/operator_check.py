"""Check `npu-ops`: does the cell's torch_npu have the operators and names that verl and vllm-ascend use?

A use that also fails with the torch_npu that the package pins is a defect of the package and not of this
combination of versions. It is reported, but does not fail the cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.check import TaskContext
from harness.compat.operators.operator_analysis import OperatorRequest, TorchNpuConsumer
from harness.compat.operators.operator_measurements import OperatorsMeasured, PackageVersion
from harness.compat.uses.analysis_cache import analysis_code
from harness.compat.uses.analysis_process import analyse
from harness.compat.uses.package_pairs import Package
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.sources.git.mirrors import COMMIT_REMEDY, newly_mirrored
from harness.sources.packages.index_lookup import ReleaseNotFoundError
from harness.sources.packages.locked_releases import releases_of_task
from harness.sources.packages.release_fetcher import ReleaseFetcher, Sources
from harness.sources.packages.release_sources import (
    exact_version,
    release_requirements,
    tree_requirements,
)

PROVIDER = "torch-npu"
CONSUMERS = {"verl_tree": "verl", "vllm_ascend": "vllm-ascend"}


def pinned_torch_npu(sources: Path) -> str:
    """The exact torch_npu version that a release or commit requires, or ""."""
    for requirement in map(Requirement, (*release_requirements(sources), *tree_requirements(sources))):
        if canonicalize_name(requirement.name) == PROVIDER and (version := exact_version(requirement)):
            return version
    return ""


def run(ctx: TaskContext) -> Measured[OperatorsMeasured]:
    """Compare the uses in verl and vllm-ascend with the facet `torch_npu`."""
    releases = releases_of_task(ctx)
    torch_npu = _locked(PackageVersion(**ctx.facets["torch_npu"]), PROVIDER, releases)
    problem, provider = _sources(releases, PROVIDER, torch_npu)
    if provider is None:
        measured = OperatorsMeasured(
            torch_npu=torch_npu, not_read=(problem,), absent_commits=_commits([torch_npu])
        )
        return Measured(measurements=measured, evidence=Evidence.STATIC)
    consumers, not_read, absent, archives = [], [], [], [provider.archive]
    for facet, package in CONSUMERS.items():
        tree = _locked(PackageVersion(**ctx.facets[facet]), package, releases)
        if not tree.version:
            continue
        problem, sources = _sources(releases, package, tree)
        if sources is None:
            not_read.append(problem)
            absent.append(tree)
            continue
        pinned = pinned_torch_npu(sources.file)
        other = _pinned_sources(ctx, releases, package, pinned, torch_npu.version)
        archives += [sources.archive, other.archive if other else None]
        consumers.append(
            TorchNpuConsumer(
                package=Package(name=package, version=tree.version, file=sources.file),
                pinned=pinned,
                pinned_sources=other.file if other else None,
            )
        )
    request = OperatorRequest(
        torch_npu=torch_npu,
        sources=provider.file,
        consumers=tuple(consumers),
        not_read=tuple(not_read),
        cache=ctx.cache,
        code=analysis_code(),
    )
    measured = analyse(ctx, "harness.compat.operators.operator_analysis", request, OperatorsMeasured)
    measured = replace(
        measured,
        archives_read=tuple(dict.fromkeys(filter(None, archives))),
        absent_commits=_commits(absent),
    )
    for use in measured.uses:
        ctx.log(str(use))
    return Measured(measurements=measured, evidence=Evidence.STATIC)


def _commits(absent: Sequence[PackageVersion]) -> tuple[str, ...]:
    """The commits of these packages that are not releases."""
    return tuple(one.commit for one in absent if one.kind != "release" and one.commit)


def _locked(planned: PackageVersion, package: str, releases: ReleaseFetcher) -> PackageVersion:
    """The version of a release that the cell's lock has."""
    if planned.kind != "release" or not planned.version:
        return planned
    return replace(planned, version=releases.version(package, planned.version))


def _pinned_sources(
    ctx: TaskContext, releases: ReleaseFetcher, package: str, pinned: str, version: str
) -> Sources | None:
    """The sources of the torch_npu that a package pins; None when it is `version` or is not available."""
    if not pinned or pinned == version:
        return None
    try:
        return releases.sources(PROVIDER, pinned)
    except ReleaseNotFoundError:
        ctx.log(f"{package} pins torch_npu {pinned}, which is not on the package index")
        return None


def _sources(releases: ReleaseFetcher, package: str, tree: PackageVersion) -> tuple[str, Sources | None]:
    """A pair: why the sources of a release or commit are not available (or ""), and the sources."""
    try:
        if tree.kind == "release":
            return "", releases.sources(package, tree.version)
    except ReleaseNotFoundError as error:
        return error.problems[0].what, None
    found = releases.commit(tree.commit)
    return f"{package} {tree.version} is the commit {tree.commit[:12]}, which no local mirror has", found


def holds(measurements: OperatorsMeasured) -> str:
    """Why the stored outcome should be replaced: a mirror now has a commit that was not read."""
    return newly_mirrored(measurements.absent_commits)


def judge(measurements: OperatorsMeasured, _params: Mapping[str, object]) -> Judgement:
    """Fail on unsupported uses without a guard and on changed defaults; `own` uses are only reported.

    Not-run when a package could not be read and the others have no such use. Inconclusive when a package has
    no operator call at all, because every version of verl and vllm-ascend has some. Unsupported when no
    package of the cell can use torch_npu.
    """
    version = measurements.torch_npu.version
    unguarded = [use for use in measurements.uses if not use.guarded]
    reasons = [f"{use} ({use.consumer} with torch_npu {version})." for use in unguarded if not use.own]
    reasons += [f"{change}." for change in measurements.silent]
    unread = [f"Not checked: {text}." for text in measurements.not_read]
    notes = [
        f"{use}; the torch_npu that {use.consumer} pins does not support it either."
        for use in unguarded
        if use.own
    ]
    checked = [f"Checked {item.calls} operator calls of {item.package}." for item in measurements.consumers]
    if reasons:
        pins = [
            f"{item.package} pins torch_npu {item.pinned}." for item in measurements.consumers if item.pinned
        ]
        return Judgement(
            status=Status.FAIL,
            reasons=(*reasons, *unread, *notes),
            remedies=tuple(pins or ["Choose a torch_npu that has these operators, or do not use this code."]),
        )
    if not (unread or checked):
        return Judgement(status=Status.UNSUPPORTED, reasons=("The cell has no package that uses torch_npu.",))
    empty = [item.package for item in measurements.consumers if not item.calls]
    if empty and not unread:
        why = f"No operator call was found in {' and '.join(empty)}, so the sources may be incomplete."
        return Judgement(status=Status.INCONCLUSIVE, reasons=(why, *checked, *notes))
    return Judgement(
        status=Status.NOT_RUN if unread else Status.PASS,
        reasons=(*unread, *checked, *notes),
        remedies=(COMMIT_REMEDY,) if unread else (),
    )
