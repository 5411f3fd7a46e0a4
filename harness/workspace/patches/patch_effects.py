"""Applies patches to a commit or to the releases of the matrix, and finds the commits that broke them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import InputError
from harness.patchstack.apply.classify import LoadedPatch
from harness.patchstack.apply.stack_apply import StackResult, apply_stack
from harness.patchstack.history.forecast import forecast_stack as look_ahead
from harness.patchstack.history.survival import Survival, survival_of_releases
from harness.patchstack.stacks.patch_selection import all_variants
from harness.patchstack.stacks.upstream_tree import UpstreamTree, version_target
from harness.settings import Settings
from harness.sources.git.commit_history import Commit
from harness.sources.git.git_repository import Repository
from harness.sources.packages.release_fetcher import ReleaseFetcher
from harness.workspace.downloads import announced_fetch, progress_logger
from harness.workspace.patches.patch_target import matrix_versions, upstream_of_patches


def apply_with_culprits(
    package: str, target: UpstreamTree, chosen: Sequence[LoadedPatch], repo: Path | None, ref: str
) -> tuple[StackResult, dict[str, Commit]]:
    """Apply patches to a tree; in a repository, also find the commit that broke each failing patch."""
    if repo is None:
        return apply_stack(target.tree, chosen, target.blobs), {}
    tell = progress_logger("looking for what broke them, patches")
    found = look_ahead(package, Repository(repo), chosen, ref, tell)
    return found.stack, {
        name: breakage.broken_by for name, breakage in found.breakages.items() if breakage.broken_by
    }


def survival_over_releases(settings: Settings, patches: Path, upstream: str) -> Survival:
    """Where the patches apply over the releases of the matrix, newest first."""
    variants, logical = all_variants(patches, upstream)
    package = upstream_of_patches(patches, upstream)
    versions = [version for version in matrix_versions(settings, package) if "@" not in version]
    if not versions:
        raise InputError(
            f"the matrix has no release of {package}", fix="use a repository: --repo PATH --range A..B"
        )
    releases = ReleaseFetcher(cache=settings.cache, command=announced_fetch(package))
    trees = [(version, version_target(package, version, releases).tree) for version in versions]
    return survival_of_releases(package, trees, variants, logical)
