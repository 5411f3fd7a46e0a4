"""Where a branch of an upstream repository is now: read from a clone at hand, or asked of the repository."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from harness.errors import InfrastructureError, InputError, Location
from harness.sources.git.git_repository import Repository, git_folders

#: An answer is one line; who takes longer is not answering.
SECONDS_TO_ASK = 20.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


def head_commit(repository: str, ref: str, mirrors: Path | None) -> str:
    """The commit `ref` (a branch, or HEAD) of the repository at this address is at.

    InfrastructureError when no clone below `mirrors` is of it and it does not answer.
    """
    clone = find_clone(mirrors, repository) if mirrors else None
    if clone is not None:
        names = (f"refs/remotes/origin/{ref}", f"refs/heads/{ref}", ref)
        known = next((name for name in names if clone.has_ref(name)), "")
        if known:
            return clone.commit(known)
    return _asked(repository, ref)


def find_clone(mirrors: Path, repository: str) -> Repository | None:
    """The clone below `mirrors` of the repository at this address: by its remote, or by its folder's name."""
    owner, name = _owner_and_name(repository)
    for folder in sorted(git_folders(mirrors)):
        clone = Repository(folder)
        remotes = _remotes(clone)
        if any(_owner_and_name(url) == (owner, name) for url in remotes):
            return clone
        words = re.split(r"[^a-z0-9._-]+", folder.relative_to(mirrors).as_posix().lower())
        if not remotes and owner in words and {name, f"{name}.git"} & set(words):
            return clone
    return None


def _remotes(clone: Repository) -> list[str]:
    try:
        return [remote.url or "" for remote in clone.objects.remotes]
    except InputError:
        return []


def _owner_and_name(address: str) -> tuple[str, str]:
    parts = [part for part in re.split(r"[/:]", address.lower().removesuffix("/")) if part]
    owner, name = parts[-2:] if len(parts) > 1 else ("", parts[-1] if parts else "")
    return owner, name.removesuffix(".git")


def _asked(repository: str, ref: str) -> str:
    argv = [
        "git",
        "ls-remote",
        "--exit-code",
        "--",
        repository,
        "HEAD" if ref == "HEAD" else f"refs/heads/{ref}",
    ]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS_TO_ASK, check=False)
        said = done.stdout.split()
        why = done.stderr.strip().splitlines()[-1:] or ["no such branch"]
    except (OSError, subprocess.TimeoutExpired) as error:
        said, why = [], [str(error)]
    if said and _COMMIT.fullmatch(said[0]):
        return said[0]
    raise InfrastructureError(
        f"where {ref!r} of this repository is cannot be found out",
        where=Location(repository),
        why=why[0],
        fix="set `mirrors` to a folder with a clone of it, or write the commit",
    )
