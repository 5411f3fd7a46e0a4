"""Adds git tree ids to the commits of a lock, from local mirrors or from the repositories themselves.

A tree id identifies the content of a commit even when the history is rewritten. Upstream repositories are
queried for commits only, without trees and files: a few hundred bytes for a full commit id or a tag.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.builds.lock.cell_lock import CellLock, LockedSource
from harness.builds.ownership.temporary_folders import temporary_folder
from harness.sources.git.mirrors import find_source


def add_tree_ids(lock: CellLock, mirrors: Sequence[Path]) -> CellLock:
    """The lock with the tree id of every commit or tag that a repository below `mirrors` has.

    Abbreviated commit ids are completed.
    """
    if not mirrors or not lock.from_source:
        return lock
    return replace(lock, from_source=tuple(_with_tree(source, mirrors) for source in lock.from_source))


def _with_tree(source: LockedSource, mirrors: Sequence[Path]) -> LockedSource:
    repository = find_source(mirrors, source.commit, source.repository)
    if repository is None:
        return source
    commit = str(repository.commit(source.commit))
    tree = repository.objects.revparse_single(f"{commit}^{{tree}}")
    return replace(source, tree=str(tree.id), commit=commit if source.abbreviated else source.commit)


# An abbreviated commit id requires fetching all commits of the repository.
SECONDS = 300.0
# Git must not run the helper program of an `ext::` address.
NO_HELPERS = ("-c", "protocol.ext.allow=never")
EVERYTHING = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


def add_upstream_tree_ids(
    lock: CellLock, environ: Mapping[str, str] = os.environ
) -> tuple[CellLock, tuple[str, ...]]:
    """The lock with tree ids from the upstream repositories, and a message for each failure.

    Only source packages without a tree id are looked up.
    """
    sources, notices = [], []
    for source in lock.from_source:
        if source.tree:
            sources.append(source)
            continue
        completed, why = _fetch_commit(source, environ)
        sources.append(completed)
        notices += [f"{source.repository} does not provide {source.commit}: {why}"] if why else []
    return replace(lock, from_source=tuple(sources)), tuple(notices)


def _fetch_commit(source: LockedSource, environ: Mapping[str, str]) -> tuple[LockedSource, str]:
    with temporary_folder() as folder:
        done = _git(folder, environ, "init", "-q", "--bare", "upstream")
        if done.returncode:
            return source, _why(done)
        clone = folder / "upstream"
        depth, refs = ([], EVERYTHING) if source.abbreviated else (["--depth=1"], (source.commit,))
        done = _git(clone, environ, "fetch", "-q", "--filter=tree:0", *depth, "--", source.repository, *refs)
        if done.returncode:
            return source, _why(done)
        # The commit contains the tree's id; the tree itself was not fetched.
        name = source.commit if source.abbreviated else "FETCH_HEAD"
        done = _git(clone, environ, "log", "-1", "--format=%H %T", f"{name}^{{commit}}", "--")
        if done.returncode:
            return source, _why(done)
        commit, tree = done.stdout.split()
        if source.abbreviated and not commit.startswith(source.commit):
            return source, "a branch or tag has the name of this commit"
    return replace(source, tree=tree, commit=commit if source.abbreviated else source.commit), ""


def _git(folder: Path, environ: Mapping[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *NO_HELPERS, *argv]
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env={**environ, "GIT_TERMINAL_PROMPT": "0"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _why(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"git ended with {done.returncode}"
