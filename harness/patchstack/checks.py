"""The check of this room: do the patches selected for a cell apply to the cell's own upstream tree?"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.check import Check, TaskContext
from harness.errors import InputError, Location
from harness.outcome import Evidence, Judgement, Measured, Outcome, Status, Tier

if TYPE_CHECKING:
    from harness.patchstack.sequence import StackResult
    from harness.sources.tree import HasBlobs, Tree

MIRRORS = "NPU_MATRIX_MIRRORS"
PATCHED_FILES = "patched.zip"
PATCHED_DIGESTS = "patched.json"
#: The earliest time a zip archive can hold: equal contents must give equal archives.
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: Verdicts that do not keep a stack from being applied (see `StackResult.applies`).
_GOES_IN = ("clean", "offset", "already-upstream")


def run(ctx: TaskContext) -> Measured:
    """Apply the selected patches to the upstream tree, in memory.

    Artifacts: `patched.zip` (path below site-packages -> new content), `patched.json` (path -> SHA-256 "pre",
    "post"); both empty when nothing is to be changed, both absent when the stack does not apply.
    """
    selected = ctx.facets["patches[verl]"]
    source = ctx.facets["verl_tree"]
    if not selected:
        return _measured(
            ctx, {"tree": "not needed", "selected": [], "applies": True, "verdicts": [], "files": {}}, None
        )
    bodies = [(patch["id"], _body(ctx.root, patch)) for patch in selected]
    tree, blobs, absent = _tree(ctx, source)
    facts: dict[str, Any] = {"selected": [patch["id"] for patch in selected], "source": source}
    if tree is None:
        return _measured(ctx, {**facts, "tree": "unavailable", "reason": absent}, None)
    from harness.patchstack.sequence import apply_stack

    ctx.log(f"applying {len(bodies)} patches to {tree.label}")
    result = apply_stack(tree, bodies, blobs)
    for verdict in result.verdicts:
        ctx.log(f"  {verdict.patch}: {verdict.verdict} {'; '.join(verdict.reasons)}".rstrip())
    return _measured(
        ctx, {**facts, "tree": tree.label, **result.to_json()}, result if result.applies else None
    )


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
    from harness.patchstack.target import upstream_tree

    mirrors = os.environ.get(MIRRORS)
    return upstream_tree(
        source, cache=ctx.cache, command=ctx.command, mirrors=Path(mirrors) if mirrors else None
    )


def _measured(ctx: TaskContext, measurements: dict[str, Any], result: StackResult | None) -> Measured:
    artifacts = {}
    if measurements.get("applies"):
        artifacts = {PATCHED_FILES: PATCHED_FILES, PATCHED_DIGESTS: PATCHED_DIGESTS}
        _write_files(ctx.workdir / PATCHED_FILES, result)
        digests = result.digests() if result else {}
        (ctx.workdir / PATCHED_DIGESTS).write_text(
            json.dumps(digests, indent=1, sort_keys=True), encoding="utf-8"
        )
    return Measured(measurements=measurements, evidence=Evidence.STATIC, artifacts=artifacts)


def _write_files(file: Path, result: StackResult | None) -> None:
    import zipfile

    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(result.files.items()) if result else []:
            if content is not None:
                info = zipfile.ZipInfo(path, date_time=_EPOCH)
                info.external_attr = int(content.mode, 8) << 16
                archive.writestr(info, content.data)


def judge(measurements: Mapping[str, Any], _params: Mapping[str, Any]) -> Judgement:
    """Pass when every patch goes in as it is or is in upstream already."""
    if measurements["tree"] == "unavailable":
        return Judgement(
            status=Status.NOT_RUN,
            reasons=(measurements["reason"],),
            remedies=(f"set {MIRRORS} to a folder with a clone or bare mirror that has it",),
        )
    if not measurements["selected"]:
        return Judgement(status=Status.PASS, reasons=("no patches of ours apply to this version",))
    verdicts = measurements["verdicts"]
    # The first reason stands in every short line: it is about a patch that does not go in, if there is one.
    told = sorted(verdicts, key=lambda verdict: verdict["verdict"] in _GOES_IN)
    reasons = [_sentence(verdict, measurements["tree"]) for verdict in told]
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


def holds(outcome: Outcome) -> str:
    """An outcome without a tree no longer holds once a mirror has the commit."""
    source = outcome.measurements.get("source", {})
    mirrors = os.environ.get(MIRRORS)
    if outcome.measurements.get("tree") != "unavailable" or source.get("kind") != "commit" or not mirrors:
        return ""
    from harness.sources.git import find_mirror

    return "a mirror now has the upstream commit" if find_mirror(Path(mirrors), source["commit"]) else ""


def applies(facets: Mapping[str, Any]) -> str:
    """Why there is nothing to apply, or ""."""
    return "" if facets["patches[verl]"] else "no patch of ours is for this version of verl"


PATCHES = Check(
    name="patches",
    tier=Tier.STATIC,
    question="Do our patches apply to this version of verl, each where it was written for?",
    facets=("verl_tree", "patches[verl]"),
    sources=("harness.patchstack", "harness.sources"),
    run=run,
    judge=judge,
    applies=applies,
    holds=holds,
    timeout_s=300.0,
    expected_s=1.0,
)

CHECKS = (PATCHES,)
