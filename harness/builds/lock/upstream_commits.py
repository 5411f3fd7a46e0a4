"""Commits that no mirror has, asked of their own repositories: what they are called and what their trees are.

Commits alone are fetched, no trees and no files: some hundred bytes for one that is named in full or by a
tag.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.builds.lock.cell_lock import CellLock, SourcePackage
from harness.builds.upkeep.temporary_folders import scratch

# A commit named by its first digits is looked up among all commits of the repository.
SECONDS = 300.0
# A repository may be an address of this machine only where somebody wrote one; helpers may not be called.
NO_HELPERS = ("-c", "protocol.ext.allow=never")
EVERYTHING = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


def ask_upstream(lock: CellLock, environ: Mapping[str, str] = os.environ) -> tuple[CellLock, tuple[str, ...]]:
    """The lock with the commits and trees their repositories tell, and why the others do not.

    Asked only of those whose tree is not known yet.
    """
    found, told = [], []
    for source in lock.from_source:
        if source.tree:
            found.append(source)
            continue
        answer, why = _ask(source, environ)
        found.append(answer)
        told += [f"{source.repository} does not tell what {source.commit} is: {why}"] if why else []
    return replace(lock, from_source=tuple(found)), tuple(told)


def _ask(source: SourcePackage, environ: Mapping[str, str]) -> tuple[SourcePackage, str]:
    with scratch() as folder:
        said = _git(folder, environ, "init", "-q", "--bare", "asked")
        if said.returncode:
            return source, _why(said)
        place = folder / "asked"
        depth, refs = ([], EVERYTHING) if source.abbreviated else (["--depth=1"], (source.commit,))
        said = _git(place, environ, "fetch", "-q", "--filter=tree:0", *depth, "--", source.repository, *refs)
        if said.returncode:
            return source, _why(said)
        # The tree's name stands in the commit; the tree itself is not here.
        name = source.commit if source.abbreviated else "FETCH_HEAD"
        said = _git(place, environ, "log", "-1", "--format=%H %T", f"{name}^{{commit}}", "--")
        if said.returncode:
            return source, _why(said)
        commit, tree = said.stdout.split()
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


def _why(said: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in said.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"git ended with {said.returncode}"
