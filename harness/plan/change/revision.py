"""The files of an earlier revision of this checkout, laid out in a folder so that they can be planned."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from harness.code_graph.reachable_code import CodeGraph, is_code
from harness.errors import InfrastructureError, InputError, Location

#: Where planning begins. What it reaches decides keys, in addition to the code that a check runs: with other
#: code there, another plan may come out.
PLANNING_ROOTS = ("harness.workspace.planning.open_plan:open_plan",)
PACKAGE = "harness"
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: Variables of one repository (`git rev-parse --local-env-vars`): a hook that runs us sets those of its own.
GIT_REPOSITORY_VARIABLES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_CONFIG_COUNT",
        "GIT_CONFIG_PARAMETERS",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)
#: A git command that hangs (on a lock, on a lazily fetched object) must not hang the plan.
GIT_TIMEOUT_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A commit of this checkout: the name it was asked for by, and its full id."""

    name: str
    commit: str

    def __str__(self) -> str:
        return self.commit[:12] if self.commit.startswith(self.name) else f"{self.name} ({self.commit[:12]})"


def checkout_revision(root: Path) -> str:
    """The commit of a checkout, with a `+` where files differ from it; "" where there is none to tell."""
    head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if head.returncode != 0:
        return ""
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return head.stdout.decode().strip() + ("+" if changed.returncode == 0 and changed.stdout.strip() else "")


def resolve_revision(root: Path, name: str) -> Revision:
    """The commit called `name`; InputError says how to fetch one that is not here."""
    if name.startswith("-"):
        raise InputError(f"{name!r} is no revision", fix="name a branch, a tag or a commit")
    found = _git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if found.returncode == 0:
        return Revision(name=name, commit=found.stdout.decode().strip())
    inside = _git(root, "rev-parse", "--is-shallow-repository")
    if inside.returncode != 0:
        raise InputError(
            "this is not a git checkout, so there is no earlier revision to compare with",
            where=Location(root),
            why=inside.stderr.decode(errors="replace").strip(),
        )
    if inside.stdout.strip() == b"true":
        raise InputError(
            f"revision {name!r} is not in this checkout",
            why="the checkout is shallow: it was cloned without its history",
            fix=f"git fetch --depth=1 origin {_wanted(name)}, or git fetch --unshallow; "
            "on GitHub Actions: actions/checkout with fetch-depth: 0",
        )
    raise InputError(
        f"revision {name!r} is not in this checkout",
        why="git knows no branch, tag or commit of this name",
        fix=f"check the spelling, or git fetch origin {_wanted(name)}",
    )


def _wanted(name: str) -> str:
    """What to fetch so that `name` is here afterwards: a commit by its id, a branch with the name it gets."""
    branch = name.removeprefix("refs/remotes/").removeprefix("origin/")
    # git allows `$(...)`, `;` and a dash in front in a branch's name; this line is there to be copied.
    there = f"refs/heads/{branch}" if branch.startswith("-") else branch
    return name if _COMMIT.fullmatch(name) else shlex.quote(f"{there}:refs/remotes/origin/{branch}")


def extract_revision(root: Path, revision: Revision, paths: Sequence[str], folder: Path) -> Path:
    """Write `paths` of the revision (those it has) into `folder`, and return it.

    InfrastructureError when git cannot read them.
    """
    listed = _git(root, "ls-tree", "--name-only", "-z", revision.commit, *paths)
    present = [name for name in listed.stdout.decode(errors="replace").split("\0") if name]
    if listed.returncode == 0 and not present:
        return folder
    packed = _git(root, "archive", "--format=tar", revision.commit, "--", *present)
    if listed.returncode != 0 or packed.returncode != 0:
        raise InfrastructureError(
            f"the files of {revision} cannot be read",
            where=Location(root),
            why=(listed.stderr + packed.stderr).decode(errors="replace").strip()[-500:],
            fix="git fsck; in a partial clone, fetch the missing objects",
        )
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def has_same_code(root: Path, revision: Revision) -> bool:
    """Whether this program's files in the checkout are those of the revision, none added, none missing."""
    compared = _git(root, "diff", "--quiet", revision.commit, "--", PACKAGE)
    untracked = _git(root, "ls-files", "--others", "-z", "--", PACKAGE)
    if compared.returncode != 0 or untracked.returncode != 0:
        return False
    names = [Path(name) for name in untracked.stdout.decode(errors="replace").split("\0") if name]
    return all(not is_code(name) for name in names)


def planning_digest(package_root: Path) -> str:
    """Digest of the code that decides keys in the tree whose folder `harness` this is; "" if it lacks any."""
    graph = CodeGraph(package_root)
    if any(graph.facts(root.partition(":")[0]) is None for root in PLANNING_ROOTS):
        return ""
    return graph.digest(graph.reach(PLANNING_ROOTS, checks=False)).digest


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in GIT_REPOSITORY_VARIABLES}
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments],  # noqa: S607 - the git of the PATH
            capture_output=True,
            check=False,
            timeout=GIT_TIMEOUT_SECONDS,
            env={**environment, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError as error:
        raise InfrastructureError("git is not installed", fix="install git") from error
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(
            f"git {arguments[0]} did not answer within {GIT_TIMEOUT_SECONDS} s", where=Location(root)
        ) from error
