"""The version of an upstream at a commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.errors import HarnessError
from harness.patchstack.stacks.upstream_tree import version_in
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_mirror


def commit_version(axis: str, commit: str, mirrors: Sequence[Path]) -> str:
    """The version that a commit of an upstream states, and the whole commit; "" if no clone has it."""
    repository = find_mirror(mirrors, commit)
    if repository is None:
        return ""
    full = repository.commit(commit)
    stated = version_of_commit(repository, full, axis)
    return f"{stated}@{full}" if stated else ""


def version_of_commit(repository: Repository, commit: str, axis: str) -> str:
    """The version that the files of a commit state, or ""."""
    try:
        return str(Version(version_in(repository.tree(commit), axis)))
    except (HarnessError, InvalidVersion):
        return ""
