"""Runs the check `patches`: applies the patches selected for a cell to the cell's upstream trees."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.check import TaskContext
from harness.outcome import Evidence, Measured
from harness.patchstack.apply.classify import read_patch
from harness.patchstack.apply.stack_apply import StackResult, apply_stack
from harness.patchstack.patch_measurements import TREE_NOT_NEEDED, TREE_UNAVAILABLE, PatchesMeasured
from harness.patchstack.stacks.patch_stack import SelectedPatch
from harness.patchstack.stacks.tree_source import TreeSource
from harness.patchstack.stacks.upstream_tree import TreeNotFoundError, UpstreamTree, upstream_tree
from harness.serialisation import to_json
from harness.sources.packages.locked_releases import releases_of_task
from harness.sources.packages.release_archive import ReleaseArchive
from harness.sources.tree import SYMLINK

PATCHED_FILES = "patched.zip"
PATCHED_DIGESTS = "patched.json"
#: The earliest time that a zip archive can store. With a fixed time, equal contents give equal archives.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def run(ctx: TaskContext) -> Measured[PatchesMeasured]:
    """Apply the selected patches of every upstream to its tree, in memory.

    Artifacts: `patched.zip` has the new content of every changed file by its path below site-packages;
    `patched.json` has its SHA-256 before (`pre`) and after (`post`). Both are empty when nothing changes, and
    are not written when a stack does not apply.
    """
    selected: list[str] = []
    stale: list[str] = []
    trees: dict[str, str] = {}
    results: list[StackResult] = []
    untried: list[frozenset[str]] = []
    missing: tuple[TreeSource, str] | None = None
    archives: list[ReleaseArchive] = []
    releases = releases_of_task(ctx)
    for patches, source in _stacks(ctx):
        selected += [patch.id for patch in patches]
        unread = next((patch.unread for patch in patches if patch.unread), None)
        if unread:
            named = TreeSource(package=unread.axis, version=unread.version, commit=unread.commit)
            missing = missing or (named, f"{unread.reason}.")
            continue
        stale += [
            f"{patch.id} was imported from {patch.stale_origin.partition(' sha256:')[0]}, which has changed "
            "since then: import it again"
            for patch in patches
            if patch.stale_origin
        ]
        try:
            tree = upstream_tree(source, releases)
        except TreeNotFoundError as error:
            missing = missing or (source, error.problems[0].what)
            untried.append(_written(patches))
            continue
        trees[source.package] = tree.tree.label
        archives += [tree.archive] if tree.archive else []
        results.append(_apply(ctx, tree, patches))
    applies = all(result.applies for result in results) and missing is None
    tree_name = TREE_UNAVAILABLE if missing else ", ".join(trees.values()) or TREE_NOT_NEEDED
    digests = {path: found for result in results for path, found in result.digests().items()}
    return Measured(
        measurements=PatchesMeasured(
            selected=tuple(selected),
            tree=tree_name,
            trees=trees,
            applies=applies,
            verdicts=tuple(verdict.measured for result in results for verdict in result.verdicts),
            relations=tuple(sentence for result in results for sentence in result.relations),
            files=digests,
            uninstallable=tuple(_uninstallable(results, untried)),
            stale=tuple(stale),
            source=missing[0] if missing else None,
            reason=missing[1] if missing else "",
            archives_read=tuple(archives),
        ),
        evidence=Evidence.STATIC,
        artifacts=_write_artifacts(ctx.workdir, results) if applies else {},
    )


def _stacks(ctx: TaskContext) -> list[tuple[list[SelectedPatch], TreeSource]]:
    """For each upstream with selected patches: the patches, and the source of its tree."""
    facets: list[tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]] = [
        (ctx.facets["patches[verl]"], ctx.facets["verl_tree"])
    ]
    others = [*ctx.facets["patches[vllm_ascend]"], *ctx.facets["patches[others]"]]
    for _package, group in groupby(others, key=lambda patch: patch["tree"]["package"]):
        patches = list(group)
        facets.append((patches, patches[0]["tree"]))
    return [
        ([SelectedPatch.from_facet(patch, ctx.root) for patch in patches], TreeSource.from_facet(source))
        for patches, source in facets
        if patches
    ]


def _apply(ctx: TaskContext, target: UpstreamTree, patches: Sequence[SelectedPatch]) -> StackResult:
    ctx.log(f"applying {len(patches)} patches to {target.tree.label}")
    loaded = [read_patch(patch.id, patch.data) for patch in patches]
    result = apply_stack(target.tree, loaded, target.blobs)
    for verdict in result.verdicts:
        ctx.log(f"  {verdict.patch}: {verdict.verdict} {'; '.join(verdict.reasons)}".rstrip())
    return result


def _written(patches: Sequence[SelectedPatch]) -> frozenset[str]:
    """The paths that patches name; those of a patch that cannot be read are not known."""
    loaded = [read_patch(patch.id, patch.data).patch for patch in patches]
    return frozenset(path for patch in loaded if patch is not None for path in patch.paths)


def _uninstallable(results: Sequence[StackResult], untried: Sequence[frozenset[str]]) -> Iterator[str]:
    """Why changed files cannot be in the environment of a cell as the patches make them.

    untried: for each upstream whose tree was not found the paths that its patches write.
    """
    paths = Counter(path for one in (*(result.files for result in results), *untried) for path in one)
    for path in sorted(path for path, count in paths.items() if count > 1):
        yield f"Patches for two packages write {path}."
    for result in results:
        for path, file in sorted(result.files.items()):
            if file is not None and file.mode == SYMLINK:
                yield f"{path} is a symbolic link after patching, and packages are installed without links."


def _write_artifacts(folder: Path, results: Sequence[StackResult]) -> dict[str, str]:
    contents = {path: content for result in results for path, content in result.files.items()}
    with zipfile.ZipFile(folder / PATCHED_FILES, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(contents.items()):
            if content is not None:
                info = zipfile.ZipInfo(path, date_time=_EPOCH)
                info.external_attr = int(content.mode, 8) << 16
                archive.writestr(info, content.data)
    digests = {path: found for result in results for path, found in result.digests().items()}
    text = json.dumps(to_json(digests), indent=1, sort_keys=True)
    (folder / PATCHED_DIGESTS).write_text(text, encoding="utf-8")
    return {PATCHED_FILES: PATCHED_FILES, PATCHED_DIGESTS: PATCHED_DIGESTS}
