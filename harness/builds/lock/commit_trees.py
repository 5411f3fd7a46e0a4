"""Tree ids of the commits a lock names: what was in them, whatever becomes of the history around them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.builds.lock.cell_lock import CellLock, SourcePackage
from harness.errors import InputError
from harness.sources.git.git_repository import Repository
from harness.sources.git.mirrors import find_mirror, git_folders


def with_trees(lock: CellLock, mirrors: Path | None) -> CellLock:
    """The lock with the tree id of every commit or tag that a repository below `mirrors` holds.

    A commit named by its first digits gets its whole name.
    """
    if mirrors is None or not lock.from_source:
        return lock
    return replace(lock, from_source=tuple(_with_tree(source, mirrors) for source in lock.from_source))


def _with_tree(source: SourcePackage, mirrors: Path) -> SourcePackage:
    repository = repository_of(source, mirrors)
    if repository is None:
        return source
    commit = str(repository.commit(source.commit))
    found = repository.objects.revparse_single(f"{commit}^{{tree}}")
    return replace(source, tree=str(found.id), commit=commit if source.abbreviated else source.commit)


def repository_of(source: SourcePackage, mirrors: Path) -> Repository | None:
    """The repository below `mirrors` that holds the source's commit or tag, if one does."""
    return find_mirror(mirrors, source.commit) or _with_tag(mirrors, source)


def _with_tag(mirrors: Path, source: SourcePackage) -> Repository | None:
    """The mirror of the source's own repository with its tag: others have tags of that name too."""
    name = source.repository.removesuffix(".git").rstrip("/").rpartition("/")[2]
    for folder in sorted(git_folders(mirrors)):
        if name not in str(folder.relative_to(mirrors)):
            continue
        repository = Repository(folder)
        try:
            if repository.has_tag(source.commit):
                return repository
        except InputError:
            continue
    return None
