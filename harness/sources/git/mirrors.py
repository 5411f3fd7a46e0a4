"""Local clones of upstream repositories: where they are, and which one has a given commit or branch."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from harness.errors import InfrastructureError, InputError, Location
from harness.sources.git.absent_objects import STAMP, fetched_mirrors, is_fetching_off
from harness.sources.git.git_repository import Repository

#: An environment variable, because checks and the programs they start cannot read the settings.
MIRRORS = "NPU_MATRIX_MIRRORS"

#: The git repository that contains the checkout. A fork, or a plugin, has commits that its own stacks name.
CHECKOUT = "NPU_MATRIX_CHECKOUT"

#: The remedy if no mirror has a commit.
COMMIT_REMEDY = (
    "Run `npu-matrix mirrors update`, or set "
    f"{MIRRORS} to a folder with a clone or bare mirror that has the commit."
)

MIRROR_DEPTH = 3
#: The reply is one line; a server that needs longer is considered unreachable.
REMOTE_TIMEOUT_S = 20.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


def mirror_folders() -> tuple[Path, ...]:
    """The folders of clones and mirrors: the user's own, if it is set, that of the cache, the checkout."""
    fetched = fetched_mirrors()
    return (*own_mirror_folders(), *((fetched,) if fetched else ()), *checkout_folders())


def checkout_folders() -> tuple[Path, ...]:
    """The git repository that contains the checkout, if there is one."""
    folder = os.environ.get(CHECKOUT)
    return (Path(folder),) if folder else ()


def own_mirror_folders() -> tuple[Path, ...]:
    """The folder of clones and bare mirrors that the user has set, if any."""
    folder = os.environ.get(MIRRORS)
    return (Path(folder),) if folder else ()


def find_mirror(mirrors: Sequence[Path], commit: str) -> Repository | None:
    """The repository below `mirrors` that has `commit`, or None. Names of folders do not matter.

    One that has all its files comes before a partial clone.
    """
    partial = None
    for folder in _all_git_folders(mirrors):
        repository = Repository(folder)
        try:
            if repository.has(commit) and repository.is_complete(commit):
                return repository
            if partial is None and repository.has(commit):
                partial = repository
        except InputError:
            continue
    return partial


def find_source(mirrors: Sequence[Path], revision: str, address: str) -> Repository | None:
    """The repository below `mirrors` that has a commit, or is the one at `address` and has a tag, or None.

    Other repositories can have tags of the same name.
    """
    if not revision:
        return None
    if (repository := find_mirror(mirrors, revision)) is not None:
        return repository
    name = _owner_and_name(address)[1]
    for place in mirrors if name else ():
        for folder in sorted(git_folders(place)):
            repository = Repository(folder)
            remotes = [_owner_and_name(url)[1] for url in _remotes(repository)]
            if name not in remotes and name not in str(folder.relative_to(place)).lower():
                continue
            with contextlib.suppress(InputError):
                if repository.has_tag(revision):
                    return repository
    return None


def short_revision(revision: str) -> str:
    """The first letters of a commit id; a tag as it is."""
    return revision[:12] if _COMMIT.fullmatch(revision) else revision


def _all_git_folders(mirrors: Sequence[Path]) -> Iterator[Path]:
    for folder in mirrors:
        yield from sorted(git_folders(folder))


def newly_mirrored(commits: Iterable[str]) -> str:
    """A sentence on the first of these commits that a mirror has now, or ""."""
    mirrors = mirror_folders()
    found = next((commit for commit in commits if find_mirror(mirrors, commit)), "")
    return f"a mirror now has the commit {found[:12]}" if found else ""


def git_folders(folder: Path, depth: int = MIRROR_DEPTH) -> Iterator[Path]:
    """Clones and bare repositories in a folder, at most `depth` levels deep, without nested ones.

    Links are followed; a repository with several names is found once.
    """
    yield from _git_folders(folder, depth, set())


def _git_folders(folder: Path, depth: int, seen: set[Path]) -> Iterator[Path]:
    real = Path(os.path.realpath(folder))
    if real in seen:
        return
    seen.add(real)
    if ((folder / "objects").is_dir() and (folder / "HEAD").is_file()) or (folder / ".git").exists():
        yield folder
    elif depth:
        # Real folders first, so that a link does not hide the names below them.
        for child in sorted(_folders_in(folder), key=lambda child: (child.is_symlink(), child)):
            yield from _git_folders(child, depth - 1, seen)


def _folders_in(folder: Path) -> list[Path]:
    try:
        return [child for child in folder.iterdir() if child.is_dir()]
    except OSError:
        return []


def mirrors_problem(mirrors: Sequence[Path]) -> str:
    """Why no commit can be found in these folders of mirrors, or ""."""
    problems = [_problem_of(folder) for folder in mirrors if folder not in checkout_folders()]
    return problems[0] if problems and all(problems) else ""


def _problem_of(folder: Path) -> str:
    if not folder.exists():
        return f"the folder of mirrors, {folder}, does not exist"
    if not folder.is_dir():
        return f"{folder} is not a folder of mirrors, but a file"
    try:
        children = sorted(folder.iterdir())
    except OSError as error:
        return f"the folder of mirrors, {folder}, cannot be read: {error.strerror}"
    broken = [child.name for child in children if child.is_symlink() and not child.exists()]
    if broken:
        return f"in the folder of mirrors, {folder}, the link {broken[0]} leads nowhere"
    if next(git_folders(folder), None) is None:
        return f"the folder of mirrors, {folder}, has no git repository in its first {MIRROR_DEPTH} levels"
    return ""


def branch_head(repository: str, ref: str) -> str:
    """The current commit of `ref` (a branch or HEAD) in the repository at this address.

    It is read from a clone of the user if there is one, otherwise from the remote repository, and from the
    mirror of the cache if that is not reachable or fetching is switched off. InfrastructureError if none has
    it.
    """
    known = _known_head(own_mirror_folders(), repository, ref)
    if known:
        return known
    fetched = fetched_mirrors()
    last = _known_head((fetched,) if fetched else (), repository, ref)
    if is_fetching_off() and last:
        return last
    try:
        return _ask_remote(repository, ref)
    except InfrastructureError:
        if last:
            return last
        raise


def _known_head(mirrors: Sequence[Path], repository: str, ref: str) -> str:
    clone = find_clone(mirrors, repository)
    if clone is None:
        return ""
    names = (f"refs/remotes/origin/{ref}", f"refs/heads/{ref}", ref)
    known = next((name for name in names if clone.has_ref(name)), "")
    return clone.commit(known) if known else ""


def find_clone(mirrors: Sequence[Path], repository: str) -> Repository | None:
    """The clone below `mirrors` of the repository at this address, found by its remote or its folder."""
    for folder in mirrors:
        clone = _clone_below(folder, repository)
        if clone is not None:
            return clone
    return None


def _clone_below(mirrors: Path, repository: str) -> Repository | None:
    owner, name = _owner_and_name(repository)
    for folder in sorted(git_folders(mirrors)):
        clone = Repository(folder)
        # Only some commits of it were fetched, or none.
        if folder.parent == fetched_mirrors() and not (folder / STAMP).is_file():
            continue
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
    if is_fetching_off():
        raise _unknown_head(repository, ref, "fetching is switched off")
    argv = [
        "git",
        "ls-remote",
        "--exit-code",
        "--",
        repository,
        "HEAD" if ref == "HEAD" else f"refs/heads/{ref}",
    ]
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0"},
            capture_output=True,
            text=True,
            timeout=REMOTE_TIMEOUT_S,
            check=False,
        )
        reply = done.stdout.split()
        why = done.stderr.strip().splitlines()[-1:] or ["no such branch"]
    except (OSError, subprocess.TimeoutExpired) as error:
        reply, why = [], [str(error)]
    if reply and _COMMIT.fullmatch(reply[0]):
        return reply[0]
    raise _unknown_head(repository, ref, why[0])


def _unknown_head(repository: str, ref: str, why: str) -> InfrastructureError:
    return InfrastructureError(
        f"the commit of {ref!r} in this repository cannot be determined",
        where=Location(repository),
        why=why,
        fix="set `mirrors` to a folder with a clone of it, or name the commit",
    )
