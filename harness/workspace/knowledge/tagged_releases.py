"""Releases that a project publishes as tags of its repository, not on a package index, as MindSpeed does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from harness.errors import HarnessError
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import git_folders
from harness.sources.packages.index_listing import ListedRelease

#: Package -> its module. What the index has under the name of such a package is another program.
BY_TAG = {"mindspeed": "mindspeed"}
# `v2.2.0_core_r0.12.1` is the release 2.2.0 for Megatron core 0.12.1: the version 2.2.0+core.r0.12.1.
_TAG = re.compile(r"v?(?P<version>\d[\w.]*?)(?:_(?P<variant>core_r[\d.]+))?")


@dataclass(frozen=True, kw_only=True)
class TaggedReleases:
    """The releases in a clone. commits: version -> its commit."""

    releases: tuple[ListedRelease, ...]
    commits: dict[str, str]


def tagged_releases(package: str, mirrors: Sequence[Path]) -> TaggedReleases | None:
    """The tags that are versions, of the first clone below `mirrors` with the package; None without one."""
    module = BY_TAG.get(package)
    folders = (one for mirror in mirrors for one in sorted(git_folders(mirror))) if module else ()
    return next((_of(Repository(one)) for one in folders if _has_module(one, str(module))), None)


def _has_module(folder: Path, module: str) -> bool:
    try:
        return bool(Repository(folder).tree("HEAD").mode(f"{module}/__init__.py"))
    except HarnessError:
        return False


def _of(repository: Repository) -> TaggedReleases:
    commits = {
        version: repository.commit(f"refs/tags/{tag}")
        for tag in repository.tags()
        if (version := tag_version(tag))
    }
    listed = [ListedRelease(version=version, uploaded="", files=()) for version in commits]
    return TaggedReleases(
        releases=tuple(sorted(listed, key=lambda one: Version(one.version))), commits=commits
    )


def tag_version(tag: str) -> str:
    """The version that a tag names, "" if it names none."""
    found = _TAG.fullmatch(tag)
    if not found:
        return ""
    variant = f"+{found['variant'].replace('_', '.')}" if found["variant"] else ""
    try:
        return str(Version(f"{found['version']}{variant}"))
    except InvalidVersion:
        return ""
