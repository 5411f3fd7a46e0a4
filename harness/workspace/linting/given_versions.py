"""The versions given to `npu-matrix lint`: one that does not exist is an error that names the nearest."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import replace

from harness.compat.lint.lint_check import engine_tree, verl_tree, vllm_tree
from harness.errors import InfrastructureError, InputError
from harness.matrix.model.versions import Version
from harness.settings import Settings
from harness.sources.packages.index_lookup import PackageIndex
from harness.sources.packages.index_settings import index_environment
from harness.sources.packages.nearest_releases import require_release
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.sources.tree import Tree
from harness.workspace.downloads import run_quietly

#: Further axes whose versions are releases on the package index.
PUBLISHED = ("transformers", "vllm", "vllm_ascend")
NEAREST = 3
INDEX_TIMEOUT_S = 10


def lint_versions(
    settings: Settings, cell: str | None, given: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The versions of a cell, replaced by those that are given; and which of these could not be looked up.

    InputError for a version that does not exist. A commit (`0.6.1@COMMIT`) is not looked up here.
    """
    # The lookups only verify what the user gave: an index that does not respond must not delay the result.
    patience = replace(index_environment(os.environ), retries=0, timeout_s=INDEX_TIMEOUT_S)
    index = PackageIndex(settings=patience, command=run_quietly)
    unverified = []
    for axis in PUBLISHED:
        if axis not in given or "@" in given[axis]:
            continue
        try:
            require_release(index, axis.replace("_", "-"), given[axis])
        except InfrastructureError:
            unverified.append(f"{axis} {given[axis]}")
    if "cann" in given:
        _require_cann(settings, given["cann"])
    if not cell:
        return dict(given), tuple(unverified)
    # Planning imports every check, which takes longer than the lint of a script.
    from harness.workspace.planning.open_plan import open_matrix
    from harness.workspace.planning.plan_selection import find_cell

    found = find_cell(open_matrix(settings), settings["profile"], cell)
    return {**found.axes, **given}, tuple(unverified)


def tree_of_verl(versions: Mapping[str, str], releases: ReleaseFetcher) -> Tree | None:
    """The files of the verl in `versions`; None without a version, or for a commit that no mirror has.

    ReleaseNotFoundError with the nearest releases if the package index has no such release.
    """
    try:
        found = verl_tree(versions, releases)
    except InputError:
        releases.require("verl", versions["verl"])
        raise
    return found[0] if found else None


def tree_of_engine(versions: Mapping[str, str], releases: ReleaseFetcher) -> tuple[Tree | None, str]:
    """The files of the vllm-ascend in `versions`, None if there are none; and why, if it was given."""
    try:
        found = engine_tree(versions, releases)
    except (InputError, InfrastructureError) as error:
        return None, str(error)
    if found is None and versions.get("vllm_ascend"):
        return None, f"no archive of vllm-ascend {versions['vllm_ascend']} is available"
    return (found[0] if found else None), ""


def tree_of_vllm(versions: Mapping[str, str], releases: ReleaseFetcher) -> Tree | None:
    """The files of the vLLM in `versions`; None if they are not to be had."""
    try:
        found = vllm_tree(versions, releases)
    except (InputError, InfrastructureError):
        return None
    return found[0] if found else None


def _require_cann(settings: Settings, given: str) -> None:
    """No index lists CANN: its versions are those of the published tables of matrix.yaml.

    Of a version series in the tables (`8.3`) every release and preview is taken.
    """
    from harness.workspace.planning.open_plan import open_matrix

    axis = open_matrix(settings).axes.get("cann")
    if axis is None or not axis.published or given == "host":
        return
    try:
        wanted = axis.parse(given)
    except ValueError as error:
        raise InputError(f"cann {given!r} is not a version", why=str(error)) from error
    known = sorted((axis.parse(version) for version in axis.published), key=lambda one: one.order or ())
    if _series(wanted) in {_series(one) for one in known}:
        return
    near = difflib.get_close_matches(wanted.nominal, [one.nominal for one in known], n=NEAREST, cutoff=0.0)
    raise InputError(
        f"no CANN {given} is known",
        why=f"no published table of matrix.yaml has a release of CANN {_series(wanted)}",
        fix=f"nearest known: {', '.join(near)}; if it was published since, leave out --cann",
    )


def _series(version: Version) -> str:
    return ".".join(version.nominal.split(".")[:2])
