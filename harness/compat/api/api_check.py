"""Do the names verl, vllm-ascend and our patches of them take from other packages exist in those versions?

What breaks while a module is imported that every training imports fails the cell. What breaks only when some
function runs is said, and does not: nobody knows from the text whether a recipe gets there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from harness.check import TaskContext
from harness.compat.api.consumers import CONSUMERS
from harness.compat.api.last_release import last_releases_with
from harness.compat.api.patched_sources import with_patches
from harness.compat.surface.api_surface import ApiSurface
from harness.compat.uses.analysis_cache import analysis_code
from harness.compat.uses.analysis_process import analyse
from harness.errors import InputError
from harness.outcome import Evidence, Judgement, Measured, Outcome, Status
from harness.sources.git.mirrors import COMMIT_REMEDY, mirrors_folder
from harness.sources.packages.lockfile import normal_name
from harness.sources.packages.pip_download import ReleaseNotFoundError
from harness.sources.packages.release_sources import SourceFetcher, newest_version, release_requirements

MOST_SAID = 12
#: Package -> the facet with our patches of it.
PATCHED = {"verl": "patches[verl]", "vllm-ascend": "patches[vllm_ascend]"}
TREES = {"verl": "verl_tree", "vllm-ascend": "vllm_ascend"}


def gather(
    packages: Mapping[str, str], facets: Mapping[str, Any], source: SourceFetcher, root: Path
) -> dict[str, Any]:
    """What `examine` needs, with the sources of the consumers among `packages` (name -> version) fetched."""
    versions = {normal_name(name): version for name, version in packages.items()}
    commits = {
        normal_name(str(item["package"])): str(item.get("commit") or "")
        for item in facets["pins"].get("from_source", ())
    }
    for name, facet in TREES.items():
        if facets[facet]["version"]:
            versions[name] = facets[facet]["version"]
            commits[name] = facets[facet].get("commit", "")
    wanted = [
        name
        for consumer in CONSUMERS
        if consumer.package in versions
        for name in (consumer.package, *consumer.providers)
        if name in versions
    ]
    files = {
        name: source.fetch(name, versions[name], commits.get(name, "")) for name in dict.fromkeys(wanted)
    }
    request: dict[str, Any] = {
        "cache": str(source.cache),
        "code": analysis_code(),
        "versions": {name: versions[name] for name in files},
        "files": {name: str(file) for name, file in files.items() if file},
        "not_read": [
            f"{name} {commits.get(name, '')[:12] or versions[name]}"
            for name, file in files.items()
            if not file
        ],
        "made_for": _made_for(versions, commits, source),
    }
    return {**request, **_our_patches(facets, request["files"], root)}


def _made_for(
    versions: Mapping[str, str], commits: Mapping[str, str], source: SourceFetcher
) -> dict[str, Any]:
    """Consumer -> provider -> version and file it was published for, where the cell has another version."""
    found: dict[str, Any] = {}
    for consumer in CONSUMERS:
        if consumer.package not in versions or commits.get(consumer.package):
            continue
        for name, version in consumer.made_for(versions[consumer.package]).items():
            file = source.fetch(name, version) if name in versions and versions[name] != version else None
            if file:
                found.setdefault(consumer.package, {})[name] = [version, str(file)]
    return found


def _our_patches(facets: Mapping[str, Any], files: Mapping[str, str], root: Path) -> dict[str, Any]:
    """`changes`: consumer -> file -> text with our patches; `patches`: file -> ids; `misfits`: ids."""
    changes, patches, misfits = {}, {}, []
    for package, facet in PATCHED.items():
        selected = facets.get(facet) or ()
        if not selected or package not in files:
            continue
        surface = ApiSurface(Path(files[package]))
        by_file = {file: module for module, file in surface.files()}
        bodies = [
            (patch["id"], (root / patch["file"]).read_bytes().decode("utf-8", "replace"))
            for patch in selected
        ]

        def read(
            path: str, surface: ApiSurface = surface, by_file: Mapping[str, str] = by_file
        ) -> str | None:
            return surface.source(by_file[path]).decode("utf-8", "replace") if path in by_file else None

        texts, changed_by, left = with_patches(bodies, read)
        changes[package] = texts
        patches.update(changed_by)
        misfits += left
    return {"changes": changes, "patches": patches, "misfits": misfits}


def stated_versions(pins: Mapping[str, Any]) -> dict[str, str]:
    """Package -> the exact version the cell states; an override wins, builds from source are left out."""
    found = {}
    for text in (*pins["requirements"], *pins["overrides"]):
        wanted = Requirement(text)
        exact = [one.version for one in wanted.specifier if one.operator == "==" and "*" not in one.version]
        if exact:
            found[normal_name(wanted.name)] = exact[0]
    return found


def with_newest(
    packages: Mapping[str, str], pins: Mapping[str, Any], tree: Mapping[str, Any], source: SourceFetcher
) -> dict[str, str]:
    """The same with the newest version of what verl takes names from, where only a range is stated.

    That is the version a resolution takes, unless a third package stands against it.
    """
    file = source.fetch("verl", tree["version"], tree.get("commit", ""))
    ranges: dict[str, list[str]] = {name: [] for name in CONSUMERS[0].ranged if name not in packages}
    for text in (*pins["requirements"], *(release_requirements(file) if file else ())):
        wanted = Requirement(text)
        if normal_name(wanted.name) in ranges and (wanted.marker is None or wanted.marker.evaluate()):
            ranges[normal_name(wanted.name)].append(str(wanted.specifier))
    newest = {}
    for name, specifiers in ranges.items():
        version = newest_release(name, ",".join(filter(None, specifiers)), source) if specifiers else ""
        if version:
            newest[name] = version
    return {**packages, **newest}


def newest_release(package: str, specifier: str, source: SourceFetcher) -> str:
    """The newest release within a range, or "" when the index has none."""
    try:
        return newest_version(f"{package}{specifier}", cache=source.cache, command=source.command)
    except ReleaseNotFoundError:
        return ""


def holds(outcome: Outcome) -> str:
    """An outcome without a commit no longer holds once there may be a mirror that has it."""
    unread = outcome.measurements.get("not_read")
    return "there is a folder of mirrors now" if unread and mirrors_folder() else ""


def run(ctx: TaskContext) -> Measured:
    """Hold the packages of facet `pins` against each other."""
    source = SourceFetcher(cache=ctx.cache, command=ctx.command, mirrors=mirrors_folder())
    tree = ctx.facets["verl_tree"]
    packages = stated_versions(ctx.facets["pins"])
    if source.fetch("verl", tree["version"], tree.get("commit", "")):
        packages = with_newest(packages, ctx.facets["pins"], tree, source)
    facts = analyse(ctx, "harness.compat.api.api_analysis", gather(packages, ctx.facets, source, ctx.root))
    with_last_versions(facts, source, everything=False)
    for finding in facts["findings"]:
        ctx.log(f"{'breaks' if finding['breaks'] else finding['kind']}: {said(finding)}")
    return Measured(measurements=facts, evidence=Evidence.STATIC)


def with_last_versions(facts: dict[str, Any], source: SourceFetcher, *, everything: bool) -> None:
    """Add to findings the last earlier release that had the name, which may have to be fetched.

    `everything`: of all that are not guarded; otherwise of those that fail the cell.
    """
    kinds = ("missing", "lost-patch", "patch", "dead-patch")
    wanted: dict[str, list[dict[str, Any]]] = {}
    for finding in facts["findings"]:
        if finding["kind"] in kinds and (finding["always"] or (everything and not finding["guarded"])):
            wanted.setdefault(finding["provider"], []).append(finding)
    for provider, findings in wanted.items():
        name, _, version = provider.partition(" ")
        found = last_releases_with(name, version, {finding["name"] for finding in findings}, source)
        for finding in findings:
            finding["last"] = found.get(finding["name"], "")


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """What breaks every training fails; what breaks a function is said; what could not be read is not run."""
    findings = [finding for finding in measurements["findings"] if finding["breaks"]]
    always = [finding for finding in findings if finding["always"]]
    unread = [f"Not looked at: {text} is not at hand." for text in measurements["not_read"]]
    if not measurements["pairs"]:
        return Judgement(
            status=Status.NOT_RUN,
            reasons=tuple(unread) or ("No package of the cell is known.",),
            remedies=(COMMIT_REMEDY,) if unread else (),
        )
    reasons = [f"{said(finding)}." for finding in always]
    later = [f"Only when it is called: {said(finding)}." for finding in findings if not finding["always"]]
    rest = [f"{len(later) - MOST_SAID} more such."] if len(later) > MOST_SAID else []
    unparsed = measurements.get("unparsed", ())
    left_out = [f"Not parsed by this Python, so not looked at: {', '.join(unparsed)}."] if unparsed else []
    misfits = [
        f"Looked at without our patch {one}, which does not fit." for one in measurements.get("misfits", ())
    ]
    looked = "; ".join(f"{a} {b} against {c} {d}" for a, b, c, d in measurements["pairs"])
    return Judgement(
        status=Status.FAIL if always else Status.NOT_RUN if unread else Status.PASS,
        reasons=(
            *reasons,
            *unread,
            *([] if always else [f"{looked}."]),
            *misfits,
            *left_out,
            *later[:MOST_SAID],
            *rest,
        ),
        remedies=(
            *dict.fromkeys(_remedy(finding) for finding in always),
            *((COMMIT_REMEDY,) if unread and not always else ()),
        ),
    )


def _remedy(finding: Mapping[str, Any]) -> str:
    if finding["last"]:
        name = finding["provider"].partition(" ")[0]
        return f"{name} {finding['last']} is the last release with {finding['name']}."
    return f"Choose another version than {finding['provider']}."


def said(finding: Mapping[str, Any]) -> str:
    """A finding as one line."""
    had = f", {finding['last']} had it" if finding["last"] else ""
    ours = f"; our patch {', '.join(finding['patches'])} changes this file" if finding["patches"] else ""
    return f"{finding['file']}:{finding['line']}: {finding['text']} ({finding['provider']}{had}{ours})"


def read_release(spec: str, source: SourceFetcher) -> tuple[str, ApiSurface]:
    """`name==version` as "name version" and its surface; InputError when it is no such thing."""
    name, equals, version = spec.partition("==")
    if not equals:
        raise InputError(f"{spec!r} names no release", fix="write it like transformers==5.5.4")
    file = source.fetch(name, version)
    if file is None:
        raise InputError(f"the package index has no {name} {version}", fix="choose a published version")
    return f"{name} {version}", ApiSurface(file)
