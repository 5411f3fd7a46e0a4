"""Check `api`: do the pinned packages have the names that verl, vllm-ascend and our patches use from them?

A use fails the cell when it breaks the import of a module that every training imports, or when our patches
add it. Another use that breaks only when a function is called is reported and does not fail the cell, because
the sources do not show which recipes call the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from harness.check import TaskContext
from harness.compat.api.api_analysis import ApiRequest
from harness.compat.api.api_measurements import ApiFinding, ApiMeasured
from harness.compat.api.consumers import CONSUMERS, Consumer
from harness.compat.api.last_release import last_releases_with
from harness.compat.api.stated_consumers import all_consumers
from harness.compat.patched_sources import apply_patches, patch_texts, unread_patches
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.analysis_cache import analysis_code
from harness.compat.uses.analysis_process import analyse
from harness.compat.uses.package_pairs import Package
from harness.matrix.model.environment_facets import PinsFacet, UnreadPatches
from harness.measurements import read_shape
from harness.outcome import Evidence, Judgement, Measured, Status
from harness.sources.git.mirrors import COMMIT_REMEDY, newly_mirrored
from harness.sources.packages.index_lookup import ReleaseNotFoundError
from harness.sources.packages.locked_releases import releases_of_task
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.release_archive import ReleaseArchive
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.packages.release_sources import exact_version, release_requirements

MAX_REPORTED = 12
ONLY_PINS = (
    "None of the packages uses another one without pinning its version; `resolve` compares pinned versions."
)
#: Consumer -> the facet with our patches for it, and the facet with its version.
PATCHES = {"verl": "patches[verl]", "vllm-ascend": "patches[vllm_ascend]"}
TREES = {"verl": "verl_tree", "vllm-ascend": "vllm_ascend"}


@dataclass(frozen=True, kw_only=True)
class PatchedFiles:
    """Our patches applied to the sources of the consumers.

    texts: consumer -> file -> its text with the patches, None if they remove it.
    added_by: file -> line -> id of the patch that adds it.
    misfits: ids of patches that do not apply.
    """

    texts: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    added_by: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    misfits: tuple[str, ...] = ()


def gather(facets: Mapping[str, Any], source: ReleaseFetcher, root: Path) -> ApiRequest:
    """Fetch the sources of consumers and providers: those in the lock of the cell, if it has one.

    root: the checkout.
    """
    pins = read_shape(PinsFacet, facets["pins"])
    versions = cell_versions(pins, facets["verl_tree"], source)
    commits = {normal_name(item.package): item.commit for item in pins.from_source}
    for name, facet in TREES.items():
        if facets[facet]["version"]:
            commits[name] = facets[facet].get("commit", "")
            planned = facets[facet]["version"]
            versions[name] = planned if commits[name] else source.version(name, planned)
    paired = [name for name in facets["paired"] if name in versions]
    compared = (
        name
        for consumer in CONSUMERS
        if consumer.package in versions
        for name in (consumer.package, *consumer.providers)
    )
    needed = dict.fromkeys(name for name in (*compared, *paired) if name in versions)
    sources = {name: source.find(name, versions[name], commits.get(name, "")) for name in needed}
    unread = _unread_patches(facets)
    found = {name: one.file for name, one in sources.items() if one and name not in unread}
    patched = _apply_our_patches(facets, found, root)
    packages = {
        name: Package(name=name, version=versions[name], file=file, changes=patched.texts.get(name, {}))
        for name, file in found.items()
    }
    consumers = all_consumers([packages[name] for name in paired if name in packages])
    made_for = _made_for(consumers, packages, commits, source)
    return ApiRequest(
        cache=source.cache,
        code=analysis_code(),
        python=facets["platform"]["python"],
        consumers=consumers,
        packages=tuple(packages.values()),
        made_for={
            consumer: tuple(
                Package(name=archive.package, version=archive.version, file=file)
                for file, archive in providers
            )
            for consumer, providers in made_for.items()
        },
        added_by=patched.added_by,
        not_read=tuple(
            f"{name} {commits.get(name, '')[:12] or versions[name]}"
            + (f" with the patches of {unread[name].axis}" if name in unread else "")
            for name in needed
            if name not in found
        ),
        misfits=patched.misfits,
        archives_read=(
            *(one.archive for one in sources.values() if one and one.archive),
            *(archive for providers in made_for.values() for _file, archive in providers),
        ),
        absent_commits=tuple(
            commit
            for name in needed
            if name not in found and (commit := unread[name].commit if name in unread else commits.get(name))
        ),
    )


def _made_for(
    consumers: Sequence[Consumer],
    packages: Mapping[str, Package],
    commits: Mapping[str, str],
    source: ReleaseFetcher,
) -> dict[str, list[tuple[Path, ReleaseArchive]]]:
    """Consumer -> the providers it was published for, where the cell has another version of them."""
    found: dict[str, list[tuple[Path, ReleaseArchive]]] = {}
    for consumer in consumers:
        if consumer.package not in packages or commits.get(consumer.package):
            continue
        for name, version in consumer.made_for(packages[consumer.package].version).items():
            is_other = name in packages and packages[name].version != version
            sources = source.find(name, version) if is_other else None
            if sources and sources.archive:
                found.setdefault(consumer.package, []).append((sources.file, sources.archive))
    return found


def _unread_patches(facets: Mapping[str, Any]) -> dict[str, UnreadPatches]:
    """Package -> patches for it that are not known."""
    found = {package: unread_patches(facets.get(facet) or ()) for package, facet in PATCHES.items()}
    return {package: unread for package, unread in found.items() if unread}


def _apply_our_patches(facets: Mapping[str, Any], files: Mapping[str, Path], root: Path) -> PatchedFiles:
    texts: dict[str, Mapping[str, str | None]] = {}
    added_by: dict[str, Mapping[str, str]] = {}
    misfits: list[str] = []
    for package, facet in PATCHES.items():
        selected = facets.get(facet) or ()
        if not selected or package not in files:
            continue
        surface = ApiSurface(files[package])
        modules = {file: module for module, file in surface.files()}

        def read(
            path: str, surface: ApiSurface = surface, modules: Mapping[str, str] = modules
        ) -> str | None:
            return surface.source(modules[path]).decode("utf-8", "replace") if path in modules else None

        texts[package], added, failed = apply_patches(patch_texts(selected, root), read)
        added_by |= added
        misfits += failed
    return PatchedFiles(texts=texts, added_by=added_by, misfits=tuple(misfits))


def pinned_versions(pins: PinsFacet) -> dict[str, str]:
    """Package -> the exact version that `pins` requires; overrides replace requirements."""
    found = {}
    overrides = (override.requirement for override in pins.overrides if override.requirement)
    for text in (*pins.requirements, *overrides):
        requirement = Requirement(text)
        if version := exact_version(requirement):
            found[normal_name(requirement.name)] = version
    return found


def cell_versions(pins: PinsFacet, tree: Mapping[str, str], source: ReleaseFetcher) -> dict[str, str]:
    """Package -> its version in the lock of the cell, else the version that `pins` requires.

    If the requirements of verl are not in the lock, the newest version is added of each provider for which
    verl and the pins state only a range. A resolution selects the same version, unless a third package
    requires an older one.
    """
    versions = {name: archive.version for name, archive in source.locked.items()} or pinned_versions(pins)
    if "verl" in source.locked or not tree["version"]:
        return versions
    sources = source.find("verl", tree["version"], tree.get("commit", ""))
    if sources is None:
        return versions
    ranges: dict[str, list[str]] = {name: [] for name in CONSUMERS[0].ranged if name not in versions}
    for text in (*pins.requirements, *release_requirements(sources.file)):
        requirement = Requirement(text)
        name = normal_name(requirement.name)
        if name in ranges and (requirement.marker is None or requirement.marker.evaluate()):
            ranges[name].append(str(requirement.specifier))
    newest = {
        name: newest_release(name, ",".join(filter(None, specifiers)), source)
        for name, specifiers in ranges.items()
        if specifiers
    }
    return {**versions, **{name: version for name, version in newest.items() if version}}


def newest_release(package: str, specifier: str, source: ReleaseFetcher) -> str:
    """The newest release within a range, or "" when the package index has none."""
    try:
        return source.newest_version(f"{package}{specifier}")
    except ReleaseNotFoundError:
        return ""


def holds(measurements: ApiMeasured) -> str:
    """Why the stored outcome should be replaced: a mirror now has a commit that was not read."""
    return newly_mirrored(measurements.absent_commits)


def run(ctx: TaskContext) -> Measured[ApiMeasured]:
    """Check the uses of the consumers against the versions that `resolve` locked."""
    source = releases_of_task(ctx)
    request = gather(ctx.facets, source, ctx.root)
    measured = analyse(ctx, "harness.compat.api.api_analysis", request, ApiMeasured)
    measured = with_last_releases(measured, source, everything=False)
    for finding in measured.findings:
        ctx.log(f"{'breaks' if finding.breaks else finding.kind}: {finding}")
    return Measured(measurements=measured, evidence=Evidence.STATIC)


def with_last_releases(measured: ApiMeasured, source: ReleaseFetcher, *, everything: bool) -> ApiMeasured:
    """Look up the last earlier release that had each missing name. May fetch releases.

    everything: look up all findings without a guard, otherwise only those that fail the cell.
    """
    kinds = ("missing", "lost-patch", "patch", "dead-patch")

    def is_selected(finding: ApiFinding) -> bool:
        is_own = finding.provider.partition(" ")[0] == finding.consumer
        return (
            not is_own and finding.kind in kinds and (finding.fails or (everything and not finding.guarded))
        )

    names: dict[str, set[str]] = {}
    for finding in filter(is_selected, measured.findings):
        names.setdefault(finding.provider, set()).add(finding.name)
    last: dict[tuple[str, str], str] = {}
    for provider, missing in names.items():
        package, _, version = provider.partition(" ")
        found = last_releases_with(package, version, missing, source)
        last |= {(provider, name): release for name, release in found.items()}
    findings = tuple(
        replace(finding, last=last.get((finding.provider, finding.name), ""))
        if is_selected(finding)
        else finding
        for finding in measured.findings
    )
    return replace(measured, findings=findings)


def judge(measurements: ApiMeasured, _params: Mapping[str, object]) -> Judgement:
    """Fail when every training would fail or our patches add a use that breaks, otherwise pass.

    Not-run when a package could not be read. Unsupported when there is nothing to compare.
    Inconclusive when no use was found in a consumer: its sources are then incomplete.
    """
    breaking = [finding for finding in measurements.findings if finding.breaks]
    failing = [finding for finding in breaking if finding.fails]
    unread = [f"Not checked: the sources of {text} are not available." for text in measurements.not_read]
    if not (measurements.pairs or unread) and len(measurements.archives_read) > 1:
        return Judgement(status=Status.UNSUPPORTED, reasons=(ONLY_PINS,))
    if not measurements.pairs:
        return Judgement(
            status=Status.NOT_RUN,
            reasons=tuple(unread) or ("The cell has no provider whose version is known.",),
            remedies=(COMMIT_REMEDY,) if unread else (),
        )
    consumers = dict.fromkeys(pair.consumer for pair in measurements.pairs if pair.provider != pair.consumer)
    empty = [name for name in consumers if not measurements.uses.get(name)]
    if empty and not (failing or unread):
        why = f"No use of another package was found in {' and '.join(empty)}: its sources are incomplete."
        return Judgement(status=Status.INCONCLUSIVE, reasons=(why,))
    later = [f"Breaks only when it is called: {finding}." for finding in breaking if not finding.fails]
    if len(later) > MAX_REPORTED:
        later = [
            *later[:MAX_REPORTED],
            f"{len(later) - MAX_REPORTED} more uses break only when they are called.",
        ]
    unparsed = ", ".join(measurements.unparsed)
    checked = f"Checked: {'; '.join(map(str, measurements.pairs))}."
    return Judgement(
        status=Status.FAIL if failing else Status.NOT_RUN if unread else Status.PASS,
        reasons=(
            *(f"{finding}." for finding in failing),
            *unread,
            *([] if failing else [checked]),
            *(f"Checked without our patch {patch}, which does not apply." for patch in measurements.misfits),
            *([f"Not checked, because this Python version cannot parse it: {unparsed}."] if unparsed else []),
            *later,
        ),
        remedies=(
            *dict.fromkeys(_remedy(finding) for finding in failing),
            *((COMMIT_REMEDY,) if unread and not failing else ()),
        ),
    )


def _remedy(finding: ApiFinding) -> str:
    if finding.last:
        name = finding.provider.partition(" ")[0]
        return f"{name} {finding.last} is the last release with {finding.name}."
    package = finding.provider.partition(" ")[0]
    if package == finding.consumer:
        patch = finding.patch or f"for {package}"
        return f"Change the patch {patch}: it breaks {finding.name} within {package}."
    change = f"Change the patch {finding.patch}, or choose" if finding.patch else "Choose"
    return f"{change} a version of {package} that has {finding.name}."
