"""Do the NPU operators and `torch.npu` names a cell's packages use exist in its torch_npu, as they are used?

A finding that a package also has with the torch_npu it was released with is its own defect and no matter of
versions: it is said, and does not fail the cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harness.check import TaskContext
from harness.compat.uses.analysis_cache import analysis_code
from harness.compat.uses.analysis_process import analyse
from harness.outcome import Evidence, Judgement, Measured, Outcome, Status
from harness.sources.git.mirrors import COMMIT_REMEDY, mirrors_folder
from harness.sources.packages.pip_download import ReleaseNotFoundError
from harness.sources.packages.release_sources import (
    commit_sources,
    fetch_sources,
    release_requirements,
    tree_requirements,
)

PROVIDER = "torch-npu"
# Folders whose code runs on another chip than the A2 and A3 of the matrix (vllm-ascend, `is_310p()`).
OTHER_CHIPS = ("_310p",)
CONSUMERS = {"verl_tree": "verl", "vllm_ascend": "vllm-ascend"}


def pinned_torch_npu(sources: Path) -> str:
    """The exact torch_npu a release or commit requires, or ""."""
    for wanted in map(Requirement, (*release_requirements(sources), *tree_requirements(sources))):
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
        "code": analysis_code(),
    }
    answer = analyse(ctx, "harness.compat.operators.operator_analysis", request) if consumers else {}
    for use in answer.get("uses", ()):
        ctx.log(_text(use))
    return Measured(measurements={**facts, **answer}, evidence=Evidence.STATIC)


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
    reasons = [f"{_text(use)} ({use['consumer']} with torch_npu {version})." for use in wrong]
    reasons += [f"{change['place']}." for change in measurements["silent"]]
    failed = bool(reasons)
    unread = [f"Not looked at: {text}." for text in measurements["not_read"]]
    notes = [
        f"{_text(use)}, nor with the torch_npu that {use['consumer']} is made for."
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


def _text(use: Mapping[str, Any]) -> str:
    return f"{use['file']}:{use['line']}: {use['text']}"
