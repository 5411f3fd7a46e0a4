"""Revisions of this checkout: resolves their names, and extracts their files for planning."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.code_graph.reachable_code import CodeGraph, is_code
from harness.errors import InfrastructureError, InputError, Location

#: Where planning starts. The code that is reachable from here decides which cells, checks and keys a plan
#: has.
PLANNING_ROOTS = ("harness.workspace.planning.open_plan:open_plan",)
PACKAGE = "harness"
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: Variables that select a repository (`git rev-parse --local-env-vars`). A git hook sets those of its own
#: repository for the programs it starts.
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
#: The mode of a submodule in the index of git.
SUBMODULE_MODE = "160000"
#: What git prints, besides the commit, for a name that several references or abbreviated commits have.
AMBIGUOUS = b"is ambiguous"
#: Time limit of a git command, which may wait for a lock or fetch an object.
GIT_TIMEOUT_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A commit of this checkout: the name that the user gave, and its full id."""

    name: str
    commit: str

    def __str__(self) -> str:
        return self.commit[:12] if self.commit.startswith(self.name) else f"{self.name} ({self.commit[:12]})"


class AmbiguousRevisionError(InputError):
    """Several references have this name, so it says nothing; it must not stand for anything else either."""


def checkout_revision(root: Path) -> str:
    """The commit of a checkout, with a `+` if tracked files were changed; "" if there is no commit.

    The git command is not necessary for it.
    """
    try:
        return _revision_of_command(root)
    except InfrastructureError:
        return _revision_of_library(root)


def _revision_of_library(root: Path) -> str:
    import pygit2

    found = pygit2.discover_repository(str(root))
    if found is None:
        return ""
    try:
        repository = pygit2.Repository(found)
        commit = str(repository.head.peel(pygit2.Commit).id)
        changed = repository.status(untracked_files="no")
    except (pygit2.GitError, KeyError, ValueError):
        return ""
    return commit + ("+" if changed else "")


def _revision_of_command(root: Path) -> str:
    head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    if head.returncode != 0:
        return ""
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return head.stdout.decode().strip() + ("+" if changed.returncode == 0 and changed.stdout.strip() else "")


def resolve_revision(root: Path, name: str) -> Revision:
    """The commit with this name; the InputError for a missing or ambiguous one says what to do."""
    if name.startswith("-"):
        raise InputError(f"{name!r} is not a revision", fix="name a branch, a tag or a commit")
    found = _git(root, "-c", "core.warnAmbiguousRefs=true", "rev-parse", "--verify", f"{name}^{{commit}}")
    if found.returncode == 0 and AMBIGUOUS in found.stderr:
        # git prefers tags: whoever can push one could replace the base of a gate, for example origin/main.
        raise AmbiguousRevisionError(
            f"revision {name!r} is ambiguous: more than one branch, tag or commit has this name",
            where=Location(root),
            fix=f"write refs/remotes/{name}, refs/heads/{name} or refs/tags/{name}, or the full commit id",
        )
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
            fix=f"git fetch --depth=1 origin {_refspec(name)}, or git fetch --unshallow; "
            "on GitHub Actions: actions/checkout with fetch-depth: 0",
        )
    raise InputError(
        f"revision {name!r} is not in this checkout",
        why="git knows no branch, tag or commit of this name",
        fix=f"check the spelling, or git fetch origin {_refspec(name)}",
    )


def resolve_comparison(root: Path, name: str) -> Revision:
    """The commit to compare with: `REV`, or for `REV...` the last common one of REV and HEAD.

    InputError if there is none, which in a shallow checkout only means that it was not fetched.
    """
    base, dots, other = name.partition("...")
    if not dots:
        return resolve_revision(root, name)
    ends = [resolve_revision(root, end).commit for end in (base, other or "HEAD")]
    found = _git(root, "merge-base", *ends)
    if found.returncode != 0:
        raise InputError(
            f"{base} and {other or 'HEAD'} have no common commit in this checkout",
            fix="git fetch --unshallow; on GitHub Actions: actions/checkout with fetch-depth: 0",
        )
    return Revision(name=name, commit=found.stdout.decode().strip())


def renamed_files(root: Path, revision: Revision) -> Mapping[str, str]:
    """The name in this checkout -> the name in the revision, of files that git recognises as renamed.

    Names are relative to `root`, which need not be the top of the checkout.
    """
    options = ("--name-status", "--find-renames", "--diff-filter=R", "--no-ext-diff", "--no-relative")
    compared = _git(root, "diff", *options, "-z", revision.commit, "--")
    top = _git(root, "rev-parse", "--show-toplevel")
    folder = os.path.realpath(os.fsdecode(top.stdout.rstrip(b"\n")))
    fields = compared.stdout.split(b"\0") if compared.returncode == 0 else []
    here = os.path.realpath(root)

    def name(field: bytes) -> str:
        return os.path.relpath(Path(folder, os.fsdecode(field)), here)

    return {name(new): name(old) for old, new in zip(fields[1::3], fields[2::3], strict=False)}


def _refspec(name: str) -> str:
    """The argument of `git fetch` that makes `name` available: a commit id, or a branch with its local
    name."""
    branch = name.removeprefix("refs/remotes/").removeprefix("origin/")
    # Users copy this command, and git allows `$(...)`, `;` and a leading dash in the name of a branch.
    source = f"refs/heads/{branch}" if branch.startswith("-") else branch
    return name if _COMMIT.fullmatch(name) else shlex.quote(f"{source}:refs/remotes/origin/{branch}")


def extract_revision(root: Path, revision: Revision, folder: Path) -> Path:
    """Write the files of the revision into `folder` as git would check them out, and return the folder that
    stands for `root`.

    These are all files of the repository, because a link or a header can name a file anywhere in it, and the
    files of those submodules that the checkout has. InfrastructureError if git cannot write them.
    """
    found = _git(root, "rev-parse", "--show-toplevel", "--show-prefix")
    top, _, prefix = os.fsdecode(found.stdout).partition("\n")
    _check_out(Path(top), revision.commit, folder / "tree", revision)
    _link_repository(root, revision.commit, folder)
    return folder / "tree" / prefix.rstrip("\n")


def _link_repository(root: Path, commit: str, folder: Path) -> None:
    """Make the tree a work tree of the repository, as `git worktree` does, but unknown to the repository.

    Patches that are commits of a branch are read from the repository; there, HEAD is the revision.
    """
    common = os.fsdecode(_git(root, "rev-parse", "--path-format=absolute", "--git-common-dir").stdout)
    private = folder / "tree.git"
    private.mkdir()
    (private / "commondir").write_text(common, encoding="utf-8", errors="surrogateescape")
    (private / "HEAD").write_text(f"{commit}\n", encoding="utf-8")
    link = folder / "tree" / ".git"
    if not link.exists() and not link.is_symlink():
        link.write_text(f"gitdir: {private}\n", encoding="utf-8", errors="surrogateescape")


def _check_out(repository: Path, commit: str, folder: Path, revision: Revision) -> None:
    """Check out a commit into a work tree of its own, so that attributes of this checkout do not matter."""
    folder.mkdir(parents=True, exist_ok=True)
    index = folder.parent / f"{folder.name}.index"
    git_folder = _git(repository, "rev-parse", "--absolute-git-dir")
    own = {
        "GIT_DIR": os.fsdecode(git_folder.stdout).rstrip("\n"),
        "GIT_WORK_TREE": str(folder),
        "GIT_INDEX_FILE": str(index),
    }
    for command in (
        ("read-tree", commit),
        ("checkout-index", "--all", "--quiet"),
        ("ls-files", "--stage", "-z"),
    ):
        done = _git(folder, *command, environment=own)
        if done.returncode != 0:
            raise InfrastructureError(
                f"the files of {revision} cannot be read",
                where=Location(repository),
                why=done.stderr.decode(errors="replace").strip()[-500:],
                fix="git fsck; in a partial clone, fetch the missing objects",
            )
    index.unlink(missing_ok=True)
    for entry in filter(None, os.fsdecode(done.stdout).split("\0")):
        facts, _, name = entry.partition("\t")
        mode, submodule_commit, _stage = facts.split(" ")
        if mode == SUBMODULE_MODE and (repository / name / ".git").exists():
            _check_out(repository / name, submodule_commit, folder / name, revision)


def missing_submodules(root: Path, revision: Revision) -> tuple[str, ...]:
    """The submodules of the revision that this checkout does not have, so that their files are unknown."""
    top = Path(os.fsdecode(_git(root, "rev-parse", "--show-toplevel").stdout.rstrip(b"\n")))
    listed = os.fsdecode(_git(top, "ls-tree", "-r", "-z", revision.commit).stdout).split("\0")
    entries = [entry.partition("\t") for entry in listed if entry.startswith(SUBMODULE_MODE)]
    return tuple(name for _facts, _tab, name in entries if not (top / name / ".git").exists())


@dataclass(frozen=True, kw_only=True)
class ChangedFiles:
    """Files that differ from a revision, relative to the checkout; `untracked` has none that git ignores."""

    tracked: tuple[str, ...]
    untracked: tuple[str, ...]


def changed_files(root: Path, revision: Revision) -> ChangedFiles:
    """The files that differ between the revision and this checkout.

    InfrastructureError if git cannot compare them.
    """
    # .gitmodules belongs to the change too, and could hide its submodules.
    options = ("--name-only", "--no-renames", "--no-ext-diff", "--no-relative", "--ignore-submodules=none")
    compared = _git(root, "diff", *options, "-z", revision.commit, "--")
    top = _git(root, "rev-parse", "--show-toplevel")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "--full-name", "-z")
    for done in (compared, top, untracked):
        if done.returncode != 0:
            raise InfrastructureError(
                f"the files that changed since {revision} cannot be listed",
                where=Location(root),
                why=done.stderr.decode(errors="replace").strip()[-500:],
                fix="git fsck; in a partial clone, fetch the missing objects",
            )
    folder = Path(os.path.realpath(os.fsdecode(top.stdout.rstrip(b"\n"))))

    def names(output: bytes) -> tuple[str, ...]:
        found = [os.fsdecode(name) for name in output.split(b"\0") if name]
        return tuple(os.path.relpath(folder / name, os.path.realpath(root)) for name in found)

    return ChangedFiles(tracked=names(compared.stdout), untracked=names(untracked.stdout))


def is_in_change(root: Path, file: Path) -> bool:
    """Whether git tracks a file in this checkout or one of its submodules, so that a change can bring it."""
    real = Path(os.path.realpath(file))
    if not real.is_file():
        return False
    if _git(real.parent, "ls-files", "--error-unmatch", "--", real.name).returncode != 0:
        return False
    tops = [_git(folder, "rev-parse", "--show-toplevel").stdout for folder in (root, real.parent)]
    superproject = _git(real.parent, "rev-parse", "--show-superproject-working-tree").stdout
    return tops[0] == tops[1] or bool(superproject.strip())


def has_same_code(root: Path, revision: Revision) -> bool:
    """Whether the code of npu-matrix in the checkout is that of the revision, without added or missing
    files."""
    compared = _git(root, "diff", "--quiet", revision.commit, "--", PACKAGE)
    untracked = _git(root, "ls-files", "--others", "-z", "--", PACKAGE)
    if compared.returncode != 0 or untracked.returncode != 0:
        return False
    names = [Path(name) for name in untracked.stdout.decode(errors="replace").split("\0") if name]
    return all(not is_code(name) for name in names)


def planning_digest(package_root: Path) -> str:
    """Digest of the planning code in a folder `harness`; "" if a module in which planning starts is
    missing."""
    graph = CodeGraph(package_root)
    if any(graph.facts(root.partition(":")[0]) is None for root in PLANNING_ROOTS):
        return ""
    return graph.digest(graph.reach(PLANNING_ROOTS, checks=False)).digest


def _git(
    root: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    inherited = {name: value for name, value in os.environ.items() if name not in GIT_REPOSITORY_VARIABLES}
    try:
        return subprocess.run(
            ["git", "--no-replace-objects", "-C", str(root), *arguments],  # noqa: S607 - the git of the PATH
            capture_output=True,
            check=False,
            timeout=GIT_TIMEOUT_SECONDS,
            env={**inherited, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", **(environment or {})},
        )
    except OSError as error:
        raise InfrastructureError(
            "git cannot be started", where=Location(root), why=str(error), fix="install git"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(
            f"git {arguments[0]} did not finish within {GIT_TIMEOUT_SECONDS} s", where=Location(root)
        ) from error
