"""The survival of the patches over upstream commits, for the report; computed once per head and cached."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.code_graph.stored_facts import code_digest
from harness.digest import digest_json
from harness.errors import HarnessError
from harness.matrix.model.definitions import Axis
from harness.matrix.version_matrix import Matrix
from harness.patchstack.apply.classify import LoadedPatch
from harness.patchstack.format.diff_writer import render_patch
from harness.patchstack.history.survival import survival_of_commits
from harness.patchstack.stacks.patch_selection import VariantGroup, all_variants, stacks_in
from harness.settings import Settings
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_clone, mirror_folders
from harness.workspace.downloads import progress_logger
from harness.workspace.patches.cached_facts import cached_facts
from harness.workspace.patches.patch_target import matrix_versions

LOGGER = logging.getLogger(__name__)


def patch_survival_file(settings: Settings, matrix: Matrix) -> Path | None:
    """The survival of the largest patch stack, from the oldest release in the matrix to the head of its
    clone.

    None if there is no clone of its upstream, or after a failure, which is logged.
    """
    try:
        return _recorded(settings, matrix)
    except (HarnessError, OSError) as error:
        LOGGER.warning("note: the history of the patches could not be computed: %s", error)
        return None


def _recorded(settings: Settings, matrix: Matrix) -> Path | None:
    patches, mirrors = settings.patches, mirror_folders()
    if not patches.is_dir():
        return None
    stacks = {name: all_variants(patches, name) for name in stacks_in(patches) if name in matrix.axes}
    for name in sorted(stacks, key=lambda name: -len(stacks[name][1])):
        axis = matrix.axes[name]
        clone = find_clone(mirrors, axis.repository) if axis.repository else None
        start = _oldest(settings, axis, clone) if clone else ""
        if clone and start:
            return _cached_file(settings, clone, f"{start}..{clone.commit('HEAD')}", *stacks[name])
    return None


def _oldest(settings: Settings, axis: Axis, clone: Repository) -> str:
    """The tag of the oldest release in the matrix that the clone contains."""
    versions = matrix_versions(settings, axis.name)[::-1] if axis.tag else []
    tags = [axis.tag.format(version=version) for version in versions]
    return next((tag for tag in tags if clone.has_tag(tag)), "")


def _cached_file(
    settings: Settings,
    clone: Repository,
    revisions: str,
    variants: Sequence[LoadedPatch],
    logical: Sequence[VariantGroup],
) -> Path:
    texts = [render_patch(one.patch).decode("latin-1") if one.patch else str(one.error) for one in variants]
    groups = [[one.name, [list(variant) for variant in one.variants]] for one in logical]
    start, _dots, head = revisions.partition("..")
    parts: list[Any] = [clone.commit(start), head, texts, groups, code_digest(__name__, cache=settings.cache)]
    file = settings.cache / "survival" / f"{digest_json(parts)}.json"
    progress = progress_logger("history of the patches, commits")
    return cached_facts(
        file, lambda: survival_of_commits(clone, revisions, variants, progress, logical).to_json()
    )
