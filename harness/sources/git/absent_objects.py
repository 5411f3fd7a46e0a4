"""Fetches contents of files that a mirror of the cache does not have yet, if the user permits it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import InfrastructureError, Location
from harness.sources.git.remote_git import FILE_PROTOCOL, PROTOCOLS, RemoteGit, RemoteGitError

#: Environment variables, because checks and the programs they start cannot read the settings. The folder of
#: fetched mirrors; whether they may be completed; additional protocols.
FETCHED = "NPU_MATRIX_FETCHED_MIRRORS"
FETCH = "NPU_MATRIX_FETCH"
FETCH_FILE = "NPU_MATRIX_FETCH_FILE"
#: In a mirror of the cache: the time of the last update of its whole history.
STAMP = "npu-matrix-updated"
_REFUSALS = ("not our ref", "unadvertised object", "missing necessary objects", "did not send all")


class AbsentObjectError(InfrastructureError):
    """The content of a file is not on this disk, and it could not or must not be fetched."""


def fetched_mirrors() -> Path | None:
    """The folder of the cache with fetched mirrors, or None outside of a command."""
    folder = os.environ.get(FETCHED)
    return Path(folder) if folder else None


def is_fetching_off() -> bool:
    """Whether the user has switched off that upstream repositories are asked."""
    return os.environ.get(FETCH, "").lower() in {"false", "no", "0"}


def permitted_git() -> RemoteGit | None:
    """How to fetch as the settings of this command say; None if nothing must be fetched."""
    if os.environ.get(FETCH, "").lower() not in {"true", "yes", "1"}:
        return None
    return fetching_git(os.environ)


def fetching_git(environ: Mapping[str, str]) -> RemoteGit:
    """How to fetch when the user asks for it, with the protocols that the settings permit."""
    with_files = environ.get(FETCH_FILE, "").lower() in {"true", "yes", "1"}
    return RemoteGit(protocols=(*PROTOCOLS, FILE_PROTOCOL) if with_files else PROTOCOLS)


def fetch_objects(folder: Path, objects: Sequence[str], git: RemoteGit, remote: str = "origin") -> None:
    """Fetch these objects (full ids) into a mirror of the cache, from one of its remotes."""
    git.run(
        folder,
        *("-c", "fetch.negotiationAlgorithm=noop"),
        *("fetch", "--progress", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"),
        *("--filter=blob:none", "--stdin", remote),
        sent="".join(f"{one}\n" for one in objects),
    )


def fetch_absent_objects(folder: Path, objects: Sequence[str], remotes: Sequence[str]) -> bool:
    """Fetch objects (full ids) into the mirror at `folder` from the first remote that has them.

    False if all remotes say that they lack one. AbsentObjectError if it cannot be known, for example
    without a network.
    """
    mirrors, git = fetched_mirrors(), permitted_git()
    if mirrors is None or not folder.is_relative_to(mirrors):
        raise _absent(folder, objects[0], "it is partial, and only mirrors of the cache are completed")
    if git is None:
        raise _absent(folder, objects[0], "fetching is switched off")
    why = ""
    for remote in remotes:
        try:
            fetch_objects(folder, objects, git, remote)
        except RemoteGitError as error:
            if not any(refusal in error.why for refusal in _REFUSALS):
                why = error.why
            continue
        return True
    if why:
        raise _absent(folder, objects[0], why)
    return False


def _absent(folder: Path, one: str, why: str) -> AbsentObjectError:
    return AbsentObjectError(
        f"the content of object {one[:12]} is not in this partial clone",
        where=Location(folder),
        why=why,
        fix="run `npu-matrix mirrors update` with a network, or use a full clone (NPU_MATRIX_MIRRORS)",
    )
