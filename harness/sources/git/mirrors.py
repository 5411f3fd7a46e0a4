"""Local clones of upstream repositories: where they are, and which one has a given commit or branch."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from harness.errors import InfrastructureError, InputError, Location
from harness.sources.git.git_repository import Repository

#: The environment variable: checks run where no settings are, and so do the programs they start.
MIRRORS = "NPU_MATRIX_MIRRORS"

#: What to do where a commit is not at hand.
COMMIT_REMEDY = f"Set {MIRRORS} to a folder with a clone or bare mirror that has the commit."

MIRROR_DEPTH = 3
#: An answer is one line; who takes longer is not answering.
SECONDS_TO_ASK = 20.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


def mirrors_folder() -> Path | None:
    """The folder of clones and bare mirrors, or None when the user names none."""
    folder = os.environ.get(MIRRORS)
    return Path(folder) if folder else None


def find_mirror(mirrors: Path, commit: str) -> Repository | None:
    """The repository below `mirrors` that holds `commit`, or None: the id decides, not the folder's name."""
    for folder in sorted(git_folders(mirrors)):
        repository = Repository(folder)
        try:
            if repository.has(commit):
                return repository
        except InputError:
            continue
    return None


def git_folders(folder: Path, depth: int = MIRROR_DEPTH) -> Iterator[Path]:
    """Clones and bare repositories in a folder, not deeper than `depth`; none inside one another."""
    if ((folder / "objects").is_dir() and (folder / "HEAD").is_file()) or (folder / ".git").exists():
        yield folder
    elif depth and folder.is_dir():
        for child in folder.iterdir():
            if child.is_dir() and not child.is_symlink():
                yield from git_folders(child, depth - 1)


def branch_head(repository: str, ref: str, mirrors: Path | None) -> str:
    """The commit `ref` (a branch, or HEAD) of the repository at this address is at.

    InfrastructureError when no clone below `mirrors` is of it and it does not answer.
    """
    clone = find_clone(mirrors, repository) if mirrors else None
    if clone is not None:
        names = (f"refs/remotes/origin/{ref}", f"refs/heads/{ref}", ref)
        known = next((name for name in names if clone.has_ref(name)), "")
        if known:
            return clone.commit(known)
    return _ask_remote(repository, ref)


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


def _ask_remote(repository: str, ref: str) -> str:
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
