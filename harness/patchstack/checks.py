"""The check of this room: do the patches selected for a cell apply to the cell's own upstream trees?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.check import Check, TaskContext
from harness.errors import InputError, Location
from harness.outcome import Evidence, Judgement, Measured, Outcome, Status, Tier
from harness.sources.git.mirrors import COMMIT_REMEDY, mirrors_folder

if TYPE_CHECKING:
    from harness.patchstack.apply.stack_apply import StackResult
    from harness.sources.tree import HasBlobs, Tree

PATCHED_FILES = "patched.zip"
PATCHED_DIGESTS = "patched.json"
#: The earliest time a zip archive can hold: equal contents must give equal archives.
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: Verdicts that do not keep a stack from being applied (see `StackResult.applies`).
_GOES_IN = ("clean", "offset", "already-upstream")


def run(ctx: TaskContext) -> Measured:
    """Apply the selected patches of every upstream to its tree, in memory.

    Artifacts: `patched.zip` (path below site-packages -> new content), `patched.json` (path -> SHA-256 "pre",
    "post"); both empty when nothing is to be changed, both absent when a stack does not apply.
    """
    stacks = [(patches, source) for patches, source in _stacks(ctx.facets) if patches]
    facts: dict[str, Any] = {"selected": [patch["id"] for patches, _source in stacks for patch in patches]}
    if not stacks:
        empty = {"tree": "not needed", "trees": {}, "applies": True, "verdicts": [], "files": {}}
        return _measured(ctx, {**facts, **empty}, ())
    trees: dict[str, str] = {}
    results = []
    missing: dict[str, Any] = {}
    for patches, source in stacks:
        bodies = [(patch["id"], _body(ctx.root, patch)) for patch in patches]
        tree, blobs, absent = _tree(ctx, source)
        if tree is None:
            missing = missing or {"tree": "unavailable", "reason": absent, "source": source}
            continue
        trees[source["package"]] = tree.label
        results.append(_apply(ctx, tree, bodies, blobs))
    applies = all(result.applies for result in results) and not missing
    facts |= {
        "source": stacks[0][1],
        "tree": ", ".join(trees.values()),
        "trees": trees,
        **_merged([result.to_json() for result in results]),
        "applies": applies,
        **missing,
    }
    return _measured(ctx, facts, results)


def _stacks(facets: Mapping[str, Any]) -> list[tuple[list[Mapping[str, Any]], Mapping[str, Any]]]:
    """The patches of each upstream, and the tree they are for."""
    ascend = facets["patches[vllm_ascend]"]
    return [(facets["patches[verl]"], facets["verl_tree"]), (ascend, ascend[0]["tree"] if ascend else {})]


def _apply(
    ctx: TaskContext, tree: Tree, bodies: Sequence[tuple[str, bytes]], blobs: HasBlobs | None
) -> StackResult:
    from harness.patchstack.apply.classify import read_patch
    from harness.patchstack.apply.stack_apply import apply_stack

    ctx.log(f"applying {len(bodies)} patches to {tree.label}")
    result = apply_stack(tree, [read_patch(name, data) for name, data in bodies], blobs)
    for verdict in result.verdicts:
        ctx.log(f"  {verdict.patch}: {verdict.verdict} {'; '.join(verdict.reasons)}".rstrip())
    return result


def _merged(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The stacks' verdicts one after the other; upstreams have no path in common."""
    return {
        "verdicts": [verdict for part in parts for verdict in part["verdicts"]],
        "relations": [sentence for part in parts for sentence in part["relations"]],
        "files": {path: digests for part in parts for path, digests in part["files"].items()},
    }


def _body(root: Path, patch: Mapping[str, Any]) -> bytes:
    from harness.digest import digest_bytes

    file = root / patch["file"]
    try:
        data: bytes = file.read_bytes()
    except OSError as error:
        raise InputError("this patch body cannot be read", where=Location(file), why=str(error)) from error
    if digest_bytes(data) != patch["digest"]:
        raise InputError(
            "this patch body changed after the plan was made",
            where=Location(file),
            fix="run again",
        )
    return data


def _tree(ctx: TaskContext, source: Mapping[str, Any]) -> tuple[Tree | None, HasBlobs | None, str]:
    """The upstream tree and its old contents, or why there is none at hand."""
    from harness.patchstack.stacks.upstream_tree import upstream_tree

    mirrors = mirrors_folder()
    return upstream_tree(source, cache=ctx.cache, command=ctx.command, mirrors=mirrors)


def _measured(ctx: TaskContext, measurements: dict[str, Any], results: Sequence[StackResult]) -> Measured:
    artifacts = {}
    if measurements["applies"]:
        artifacts = {PATCHED_FILES: PATCHED_FILES, PATCHED_DIGESTS: PATCHED_DIGESTS}
        _write_files(ctx.workdir / PATCHED_FILES, results)
        digests = {path: one for result in results for path, one in result.digests().items()}
        (ctx.workdir / PATCHED_DIGESTS).write_text(
            json.dumps(digests, indent=1, sort_keys=True), encoding="utf-8"
        )
    return Measured(measurements=measurements, evidence=Evidence.STATIC, artifacts=artifacts)


def _write_files(file: Path, results: Sequence[StackResult]) -> None:
    import zipfile

    contents = {path: content for result in results for path, content in result.files.items()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(contents.items()):
            if content is not None:
                info = zipfile.ZipInfo(path, date_time=_EPOCH)
                info.external_attr = int(content.mode, 8) << 16
                archive.writestr(info, content.data)


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Pass when every patch goes in as it is or is in upstream already."""
    if not measurements["selected"]:
        return Judgement(status=Status.PASS, reasons=("no patches of ours apply to this version",))
    verdicts = measurements.get("verdicts", [])
    fits = all(verdict["verdict"] in _GOES_IN for verdict in verdicts)
    if measurements["tree"] == "unavailable" and fits:
        return Judgement(
            status=Status.NOT_RUN,
            reasons=(measurements["reason"],),
            remedies=(COMMIT_REMEDY,),
        )
    # The first reason stands in every short line: it is about a patch that does not go in, if there is one.
    told = sorted(verdicts, key=lambda verdict: verdict["verdict"] in _GOES_IN)
    trees = measurements.get("trees", {})
    reasons = [
        _sentence(verdict, trees.get(verdict["patch"].split("/")[0], measurements["tree"]))
        for verdict in told
    ]
    reasons += measurements["relations"]
    remedies = [f"{verdict['patch']}: {remedy}" for verdict in verdicts for remedy in verdict["remedies"]]
    status = Status.PASS if measurements["applies"] else Status.FAIL
    return Judgement(status=status, reasons=tuple(reasons), remedies=tuple(remedies))


def _sentence(verdict: Mapping[str, Any], tree: str) -> str:
    word = verdict["verdict"]
    if word == "offset":
        word = f"offset({verdict['offset']:+d})"
    because = f": {'; '.join(verdict['reasons'])}" if verdict["reasons"] and word != "clean" else ""
    return f"{verdict['patch']} on {tree} is {word}{because}"


def holds(_measurements: Mapping[str, Any], outcome: Outcome) -> str:
    """An outcome without a tree no longer holds once a mirror has the commit."""
    source = outcome.measurements.get("source", {})
    mirrors = mirrors_folder()
    if outcome.measurements.get("tree") != "unavailable" or source.get("kind") != "commit" or not mirrors:
        return ""
    from harness.sources.git.mirrors import find_mirror

    return "a mirror now has the upstream commit" if find_mirror(mirrors, source["commit"]) else ""


def applies(facets: Mapping[str, Any]) -> str:
    """Why there is nothing to apply, or ""."""
    some = facets["patches[verl]"] or facets["patches[vllm_ascend]"]
    return "" if some else "no patch of ours is for these versions of verl and vllm-ascend"


PATCHES = Check(
    name="patches",
    tier=Tier.STATIC,
    question="Do our patches apply to these versions, each where it was written for?",
    facets=("verl_tree", "patches[verl]", "patches[vllm_ascend]"),
    sources=("harness.patchstack", "harness.sources"),
    run=run,
    judge=judge,
    applies=applies,
    holds=holds,
    timeout_s=300.0,
    expected_s=1.0,
)

CHECKS = (PATCHES,)
