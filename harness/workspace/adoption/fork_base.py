"""Which upstream a repository is a fork of, and the release or commit of the upstream that it is based on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from harness.matrix.model.definitions import Axis
from harness.sources.git.branch_patches import MAX_COMMITS
from harness.sources.git.checkout import GitCheckout
from harness.sources.git.git_repository import Repository
from harness.workspace.pins.pinned_commits import version_of_commit

#: The module that only this project has -> its axis.
_PROJECTS = {"verl/trainer": "verl", "vllm_ascend/__init__.py": "vllm_ascend", "vllm/engine": "vllm"}


@dataclass(frozen=True, kw_only=True)
class FoundFork:
    """The fork of an upstream.

    base: the tag or commit that it started from, "" if it could not be found. version: the version of the
    base with its commit (`0.10.0.dev0@1dda039b...`). of: the branch of the upstream, if the base is no tag.
    commits: number of own commits. note: why there is no base.
    """

    axis: str
    base: str
    version: str
    commits: int
    of: str = ""
    note: str = ""


def find_fork(files: Sequence[str], checkout: GitCheckout, axes: Mapping[str, Axis]) -> FoundFork | None:
    """Which upstream this is a fork of, and where it left it: the base with the fewest own commits."""
    axis = next(
        (
            axis
            for module, axis in _PROJECTS.items()
            if axis in axes and any(name == module or name.startswith(f"{module}/") for name in files)
        ),
        "",
    )
    if not axis:
        return None
    if not checkout.is_git or not checkout.commit("HEAD"):
        return FoundFork(axis=axis, base="", version="", commits=0, note="it is no git repository")
    pattern = axes[axis].tag.replace("{version}", "*") or "v*"
    tag = checkout.nearest_tag(pattern)
    version = tag.removeprefix(pattern.partition("*")[0]) if tag else ""
    found: list[FoundFork] = []
    if tag and (commits := checkout.count(tag, "HEAD")) is not None:
        # The archive of a release may differ from its tag: verl 0.7.0 was built from a later branch.
        start = checkout.commit(tag)
        dated = f"{_stated_version(checkout, start, axis) or version}@{start}"
        found.append(FoundFork(axis=axis, base=tag, version=dated, commits=commits))
    for branch in _upstream_branches(checkout, axes[axis].repository):
        start, commits = checkout.merge_base(branch, "HEAD"), checkout.count(branch, "HEAD")
        if start and commits is not None:
            dated = f"{_version_at(checkout, start, axis, version)}@{start}"
            found.append(FoundFork(axis=axis, base=start, version=dated, commits=commits, of=branch))
    best = min(found, key=lambda one: one.commits, default=None)
    if best is not None and best.commits <= MAX_COMMITS:
        return best
    return _from_today(checkout, axis, version)


def _from_today(checkout: GitCheckout, axis: str, version: str) -> FoundFork:
    """A repository far from any release that can be named: its commits from today on are the patches."""
    main = next((one for one in _main_branches(checkout, "origin")), "HEAD")
    start = checkout.merge_base(main, "HEAD") or checkout.commit("HEAD")
    commits = checkout.count(start, "HEAD")
    if commits is None or commits > MAX_COMMITS:
        note = f"HEAD is more than {MAX_COMMITS} commits after {main}"
        return FoundFork(axis=axis, base="", version=version, commits=0, note=note)
    dated = f"{_version_at(checkout, start, axis, version)}@{start}"
    return FoundFork(axis=axis, base=start, version=dated, commits=commits, of=main)


def _upstream_branches(checkout: GitCheckout, repository: str) -> Iterator[str]:
    """The main branch of the upstream among the remote branches."""
    name = _owner_and_name(repository)
    for remote, url in checkout.remotes().items():
        if remote == "upstream" or _owner_and_name(url) == name:
            yield from _main_branches(checkout, remote)


def _main_branches(checkout: GitCheckout, remote: str) -> Iterator[str]:
    for branch in ("main", "master"):
        if checkout.commit(f"refs/remotes/{remote}/{branch}"):
            yield f"{remote}/{branch}"
            return


def _owner_and_name(address: str) -> str:
    """`owner/name` of an address, also of git@host:owner/name.git."""
    path = re.sub(r"(?<!/):(?!/)", "/", address.lower().removesuffix(".git"))
    return "/".join(PurePosixPath(path).parts[-2:])


def _version_at(checkout: GitCheckout, commit: str, axis: str, release: str) -> str:
    """The version that the files of a commit state; without one, a development version after the release."""
    stated = _stated_version(checkout, commit, axis)
    if stated:
        return stated
    numbered = re.fullmatch(r"(.*?)(\d+)", release)
    return f"{numbered[1]}{int(numbered[2]) + 1}.dev0" if numbered else "0.dev0"


def _stated_version(checkout: GitCheckout, commit: str, axis: str) -> str:
    """The version that the files of a commit state, or ""."""
    return version_of_commit(Repository(checkout.top), commit, axis)
