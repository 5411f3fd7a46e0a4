"""The commits of a branch of this checkout as patches, and patch files by their content."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.digest import digest_bytes
from harness.errors import InputError, Location
from harness.package import shipped_root
from harness.sources.git.mirrors import find_mirror, mirror_folders
from harness.sources.git.patch_paths import MOST_COMPONENTS, with_one_component
from harness.sources.git.run_git import run_git

#: How patches of a branch are named, where others have the path of a file.
_NAMED = "branch-patches/{parent}-{commit}/{scope}.patch"
_NAME = re.compile(r"branch-patches/([0-9a-f]{40,64})-([0-9a-f]{40,64})/([A-Za-z0-9_-]+)\.patch")
_EVERYTHING = "-"
#: How patch files of another repository are named: by its commit, and the path there.
_COMMIT_FILE = re.compile(r"commit-patches/([0-9a-f]{40,64})/(.+)")
#: How a patch file is named whose paths are relative to a folder of the sources.
_FILE_INSIDE = re.compile(r"(?P<file>.+) \(in (?P<inside>[^()]+)/\)")
_CI_FILES = (".github/", ".gitlab", ".gitcode/", "Jenkinsfile")
_OWN_FILES = ("matrix.yaml", "npu-matrix.toml", ".gitignore", *_CI_FILES)
#: A longer branch is no patch stack, and a wrong base gives thousands of commits.
MAX_COMMITS = 500


@dataclass(frozen=True, kw_only=True)
class BranchPatch:
    """The change of one commit, or of a whole branch with merges. file: how `read_patch_content` finds it."""

    name: str
    file: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class BranchPatches:
    """The patches of a branch in order, the files that they change, and changed files outside of the package.

    Files with which a repository adopts npu-matrix (matrix.yaml, workflows, .gitignore) are in neither.
    """

    base: str
    patches: tuple[BranchPatch, ...]
    inside: tuple[str, ...]
    outside: tuple[str, ...]


def branch_patches(root: Path, branch: str, base: str, package: str) -> BranchPatches:
    """What `branch` changes since it left `base`, one patch for each commit.

    package: the folder whose files count; where the base has no such folder, all do. A branch with merge
    commits is one patch, because its commits do not apply one after the other. InputError if git does not
    know one of them, or they have no common commit.
    """
    head, start = (_commit(root, name) for name in (branch, base))
    found = run_git(root, "merge-base", start, head)
    if found.returncode != 0:
        raise InputError(
            f"{branch} and {base} have no common commit",
            where=Location(root),
            why="the clone may be shallow, or they are of different repositories",
            fix="fetch the history of the upstream: git fetch --unshallow, or git remote add upstream URL",
        )
    fork = found.stdout.decode().strip()
    inside = package if run_git(root, "cat-file", "-e", f"{fork}:{package}").returncode == 0 else ""
    commits = _lines(root, "rev-list", "--reverse", "--topo-order", f"{fork}..{head}")
    if len(commits) > MAX_COMMITS:
        raise InputError(
            f"{branch} has {len(commits)} commits that {base} does not have",
            where=Location(root),
            why=f"more than {MAX_COMMITS} commits are not a patch stack",
            fix="name the tag or branch of the upstream from which the branch started as 'base'",
        )
    merges = _lines(root, "rev-list", "--merges", f"{fork}..{head}")
    steps = (
        [(fork, head, "all")]
        if merges
        else [(*_parent(root, commit), _name(root, commit)) for commit in commits]
    )
    patches = []
    for number, (parent, commit, name) in enumerate(steps, start=1):
        data = _diff(root, parent, commit, inside)
        if data:
            file = _NAMED.format(parent=parent, commit=commit, scope=inside or _EVERYTHING)
            patches.append(BranchPatch(name=f"{number:04d}-{name}", file=file, data=data))
    changed = _lines(root, "diff", "--name-only", "--no-renames", fork, head)
    patched = [path for path in changed if not inside or path.startswith(f"{inside}/")]
    outside = [path for path in changed if path not in patched and not path.startswith(_OWN_FILES)]
    return BranchPatches(base=fork, patches=tuple(patches), inside=tuple(patched), outside=tuple(outside))


def commit_file_name(commit: str, path: str) -> str:
    """How `read_patch_content` finds a patch file of another repository, which a mirror has."""
    return f"commit-patches/{commit}/{path}"


def file_name_inside(file: str, inside: str) -> str:
    """How `read_patch_content` finds a patch file whose paths are relative to a folder of the sources."""
    return f"{file} (in {inside}/)" if inside else file


def plain_file_name(file: str) -> str:
    """The name of the patch file itself, without the folder that its paths are relative to."""
    found = _FILE_INSIDE.fullmatch(file)
    return found["file"] if found else file


def read_patch_content(file: str, digest: str, root: Path) -> bytes | None:
    """The patch with this digest: from the checkout, a commit of it or of a mirror, or the shipped patches.

    It may be that of the file with a newline at its end, or with other components before its paths. None if
    none of them has it: the patch has changed.
    """
    placed = _FILE_INSIDE.fullmatch(file)
    inside, file = (placed["inside"], placed["file"]) if placed else ("", file)
    candidates: Sequence[bytes] = ()
    named = _NAME.fullmatch(file)
    foreign = _COMMIT_FILE.fullmatch(file)
    if foreign:
        candidates = _of_mirror(foreign[1], foreign[2])
    elif named:
        candidates = (_diff(root, named[1], named[2], "" if named[3] == _EVERYTHING else named[3]),)
    else:
        paths = (root / file, shipped_root() / file)
        candidates = tuple(path.read_bytes() for path in paths if path.is_file())
    completed = (complete_last_line(data) for data in candidates)
    rewritten = (
        with_one_component(data, number, inside)
        for number in range(MOST_COMPONENTS + 1)
        for data in candidates
    )
    found = itertools.chain(candidates, completed, rewritten)
    return next((data for data in found if digest_bytes(data) == digest), None)


def complete_last_line(data: bytes) -> bytes:
    """The patch with a newline at its end. GNU patch reads a last line without one as if it had it."""
    return data if data.endswith(b"\n") else data + b"\n"


def _of_mirror(commit: str, path: str) -> tuple[bytes, ...]:
    mirror = find_mirror(mirror_folders(), commit)
    try:
        return (mirror.tree(commit).read(path),) if mirror else ()
    except KeyError:
        return ()


def _parent(root: Path, commit: str) -> tuple[str, str]:
    return _commit(root, f"{commit}^"), commit


def _name(root: Path, commit: str) -> str:
    """The subject as git format-patch writes it into a file name."""
    subject = (
        run_git(root, "show", "--no-patch", "--format=%f", commit).stdout.decode("utf-8", "replace").strip()
    )
    return re.sub(r"[^A-Za-z0-9._-]+", "-", subject)[:60].strip("-.") or commit[:12]


def _diff(root: Path, parent: str, commit: str, inside: str) -> bytes:
    options = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--full-index", "--binary")
    fixed = (
        "--unified=3",
        "--diff-algorithm=myers",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        "--no-indent-heuristic",
    )
    done = run_git(root, "diff", *options, *fixed, parent, commit, "--", *([inside] if inside else []))
    if done.returncode != 0:
        raise InputError(
            f"git cannot compare {parent[:12]} and {commit[:12]}",
            where=Location(root),
            why=done.stderr.decode(errors="replace").strip()[-300:],
        )
    return done.stdout


def _commit(root: Path, name: str) -> str:
    done = run_git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if done.returncode != 0:
        raise InputError(
            f"this repository has no commit, branch or tag {name!r}",
            where=Location(root),
            fix="fetch it, or write the name of another one",
        )
    return done.stdout.decode().strip()


def _lines(root: Path, *arguments: str) -> list[str]:
    done = run_git(root, *arguments)
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip()[-300:]
        raise InputError("the history of this branch cannot be read", where=Location(root), why=why)
    return os.fsdecode(done.stdout).splitlines()
