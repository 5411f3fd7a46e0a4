"""The check `patches`: do the patches selected for a cell apply to the cell's upstream trees?

Planning imports this module. The code that applies patches is imported when the check runs, because its
import would slow down `npu-matrix plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.check import Check, Parts, TaskContext
from harness.outcome import Judgement, Measured, Outcome, Status, Tier
from harness.patchstack.apply.patch_verdict import MeasuredPatch, PatchVerdict
from harness.patchstack.patch_measurements import PATCHES_FORMAT, TREE_UNAVAILABLE, PatchesMeasured
from harness.sources.git.mirrors import COMMIT_REMEDY, find_mirror, mirror_folders
from harness.sources.packages.resolve_measurements import RESOLVE_FACETS

_MAX_RELATIONS = 3


def _run(ctx: TaskContext) -> Measured[PatchesMeasured]:
    from harness.patchstack import patch_check

    return patch_check.run(ctx)


def judge(measurements: PatchesMeasured, _params: Mapping[str, object]) -> Judgement:
    """Pass when every patch applies unchanged or is upstream already, and nothing else is wrong with it."""
    if not measurements.selected:
        return Judgement(
            status=Status.UNSUPPORTED, reasons=("No patch of this project is for the versions of this cell.",)
        )
    failing = [verdict for verdict in measurements.verdicts if not _is_accepted(verdict)]
    problems = (*measurements.stale, *measurements.uninstallable)
    if measurements.tree == TREE_UNAVAILABLE and not failing and not problems:
        return Judgement(status=Status.NOT_RUN, reasons=(measurements.reason,), remedies=(COMMIT_REMEDY,))
    unjudged = set(measurements.selected) - {verdict.patch for verdict in measurements.verdicts}
    if unjudged and measurements.applies:
        return Judgement(
            status=Status.INCONCLUSIVE, reasons=(f"Without a verdict: {', '.join(sorted(unjudged))}.",)
        )
    # What fails is not to be searched for among the patches that apply.
    told = failing or ([] if problems else measurements.verdicts)
    reasons = [_sentence(verdict, _tree_of(measurements, verdict)) for verdict in told]
    if unjudged and measurements.reason:
        reasons.append(f"Not tried: {', '.join(sorted(unjudged))}: {measurements.reason}")
    remedies = [
        f"{verdict.patch}: {remedy}" for verdict in measurements.verdicts for remedy in verdict.remedies
    ]
    undecided = all(verdict.verdict is PatchVerdict.UNSUPPORTED for verdict in failing)
    refused = Status.INCONCLUSIVE if failing and undecided and not problems else Status.FAIL
    return Judgement(
        status=Status.PASS if measurements.applies and not problems else refused,
        reasons=(*problems, *reasons, *_shown(measurements.relations)),
        remedies=tuple(remedies),
    )


def _shown(relations: Sequence[str]) -> Iterator[str]:
    """The first relations between patches: each commit of a branch may need earlier ones."""
    yield from relations[:_MAX_RELATIONS]
    if len(relations) > _MAX_RELATIONS:
        yield f"{len(relations) - _MAX_RELATIONS} more patches need or exclude an earlier patch."


def _is_accepted(patch: MeasuredPatch) -> bool:
    return patch.verdict.applies or patch.verdict is PatchVerdict.ALREADY_UPSTREAM


def _tree_of(measurements: PatchesMeasured, patch: MeasuredPatch) -> str:
    return measurements.trees.get(_upstream_of(patch.patch), measurements.tree)


def _sentence(patch: MeasuredPatch, tree: str) -> str:
    word = patch.verdict.value
    if patch.verdict is PatchVerdict.CLEAN:
        return f"{patch.patch} applies to {tree} as it is"
    if patch.verdict is PatchVerdict.OFFSET:
        word = f"{word}({patch.offset:+d})"
    because = f": {'; '.join(patch.reasons)}" if patch.reasons else ""
    return f"{patch.patch} on {tree} is {word}{because}"


def holds(measurements: PatchesMeasured, _outcome: Outcome) -> str:
    """Why the stored outcome should be replaced: a mirror now has the commit that was missing."""
    source = measurements.source
    if source is None or not source.commit:
        return ""
    return "a mirror now has the upstream commit" if find_mirror(mirror_folders(), source.commit) else ""


def applies(facets: Mapping[str, Any]) -> str:
    """Why the check does not apply to the cell, or ""."""
    some = any(facets[f"patches[{name}]"] for name in ("verl", "vllm_ascend", "others"))
    return "" if some else "no patch of this project is for these versions of verl and vllm-ascend"


def _inputs_of_upstreams(facets: Mapping[str, Any]) -> dict[str, Any]:
    """Upstream -> its patches, each with its tree; "" -> the facets that are no patches."""
    facets = dict(facets)
    tree = facets.pop("verl_tree")
    found: dict[str, Any] = {"verl": [tree]}
    for name in [name for name in facets if name.startswith("patches[")]:
        for patch in facets.pop(name):
            found.setdefault(_upstream_of(patch["id"]), []).append(patch)
    return {**found, "": facets}


def judge_upstream(measurements: PatchesMeasured, upstream: str) -> Judgement:
    """Judge the patches of one upstream, also if the tree of another one was not found."""
    if not any(_upstream_of(patch) == upstream for patch in measurements.selected):
        return Judgement(status=Status.UNSUPPORTED, reasons=(f"No patch is for {upstream}.",))
    verdicts = [verdict for verdict in measurements.verdicts if _upstream_of(verdict.patch) == upstream]
    untried = {patch for patch in measurements.selected if _upstream_of(patch) == upstream} - {
        verdict.patch for verdict in verdicts
    }
    if untried:
        return Judgement(status=Status.NOT_RUN, reasons=(measurements.reason,))
    reasons = [
        _sentence(verdict, _tree_of(measurements, verdict))
        for verdict in verdicts
        if not _is_accepted(verdict)
    ]
    problems = (*measurements.stale, *measurements.uninstallable, *reasons)
    return Judgement(status=Status.FAIL if problems else Status.PASS, reasons=problems)


def _upstream_of(patch: str) -> str:
    return patch.partition("/")[0]


PATCHES = Check(
    name="patches",
    tier=Tier.STATIC,
    question="Do this project's patches apply, each hunk in the function or class that it was written for?",
    facets=("verl_tree", "patches[verl]", "patches[vllm_ascend]", "patches[others]", *RESOLVE_FACETS),
    informed_by=("resolve",),
    measurements=PATCHES_FORMAT,
    run=_run,
    judge=judge,
    applies=applies,
    holds=holds,
    parts=Parts(inputs=_inputs_of_upstreams, judge=judge_upstream),
    timeout_s=300.0,
    expected_s=1.0,
)

CHECKS = (PATCHES,)
