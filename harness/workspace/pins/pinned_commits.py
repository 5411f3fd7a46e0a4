"""The version of an upstream at a commit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.errors import HarnessError
from harness.patchstack.stacks.upstream_tree import version_in
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_mirror

_TAG = re.compile(r"(?:[A-Za-z_]+[-_])?[vr]?(?P<version>\d+(?:\.\d+)+(?:(?:rc|a|b|\.post|\.dev)\d+)?)")


def commit_version(axis: str, commit: str, mirrors: Sequence[Path]) -> str:
    """The version of an upstream at a commit, and the whole commit; "" if no clone tells it."""
    repository = find_mirror(mirrors, commit)
    if repository is None:
        return ""
    full = repository.commit(commit)
    stated = version_of_commit(repository, full, axis)
    return f"{stated}@{full}" if stated else ""


def version_of_commit(repository: Repository, commit: str, axis: str) -> str:
    """The version that the files of a commit state, else the one that its tags give, or ""."""
    try:
        return str(Version(version_in(repository.tree(commit), axis)))
    except HarnessError:
        return ""
    except InvalidVersion:
        return version_by_tags(repository, commit)


def version_by_tags(repository: Repository, commit: str) -> str:
    """The version that setuptools-scm gives a commit: `0.16.0rc2.dev32` is 32 commits after v0.16.0rc1.

    It is the scheme `guess-next-dev`, the default: https://setuptools-scm.readthedocs.io/en/latest/extending/.
    """
    tag, commits = repository.nearest_tag(commit) or ("", 0)
    found = _TAG.fullmatch(tag)
    if not found:
        return ""
    release = Version(found["version"])
    if not commits:
        return str(release)
    last = re.fullmatch(r"(.*?)(\d+)", release.public)
    return str(Version(f"{last[1]}{int(last[2]) + 1}.dev{commits}")) if last else ""
