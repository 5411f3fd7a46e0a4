"""Finds out what a repository is: patches and their layout, scripts, pinned versions, the upstream of a fork.

Nothing of the repository is executed. Only files that git tracks (or, without git, all files) are read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.compat.knowledge.pack_at_hand import shipped_pack
from harness.matrix.version_matrix import Matrix
from harness.patchstack.format.patch_header import FILE_NAME as PATCH_HEADER
from harness.patchstack.stacks.stack_import import PLUGIN, REQUIRED_VERL
from harness.sources.git.checkout import GitCheckout
from harness.sources.git.mirrors import mirror_folders
from harness.workspace.adoption.fork_base import FoundFork, find_fork
from harness.workspace.adoption.found_patches import (
    FoundPatches,
    find_patches,
    with_versions,
)
from harness.workspace.adoption.published_versions import published_with
from harness.workspace.pins.dockerfile_pins import is_dockerfile
from harness.workspace.pins.install_commands import is_readme
from harness.workspace.pins.other_hardware import is_for_other_hardware
from harness.workspace.pins.pinned_commits import commit_version
from harness.workspace.pins.pinned_versions import PinnedVersion, find_pins

MAX_FILES = 50_000
#: What a launch script of this stack contains.
_LAUNCH = re.compile(rb"python3?\s+(?:-\S+\s+)*-m\s+(?:verl|recipe)\.|verl\.trainer\.|main_ppo|main_dapo")
_MAX_SCRIPT = 1 << 20
#: What npu-matrix and installers write into a folder.
_MADE = re.compile(r"(?:^|/)(?:\.npu-matrix|npu-matrix-demo|reports/exports|node_modules|site-packages)/")
#: File of a CI system -> the system.
_CI_FILES = {
    ".gitlab-ci": "gitlab",
    ".gitlab/": "gitlab",
    ".gitcode/": "gitcode",
    ".github/workflows/": "github",
    "Jenkinsfile": "jenkins",
}


@dataclass(frozen=True, kw_only=True)
class RepositorySurvey:
    """What a repository has.

    kind: in words. scripts: folders with launch scripts. pins: folder -> axis -> pin. unknown: the same for
    commits whose version no clone tells. own_stacks: upstreams with stacks of this project's format.
    workflows: files of its CI. ci: its CI system. branch: the branch that others are merged into, "" if it is
    not known.
    """

    root: Path
    kind: str
    patches: tuple[FoundPatches, ...]
    fork: FoundFork | None
    scripts: tuple[str, ...]
    pins: Mapping[str, Mapping[str, PinnedVersion]]
    unknown: Mapping[str, Mapping[str, PinnedVersion]]
    own_stacks: tuple[str, ...]
    workflows: tuple[str, ...]
    ci: str
    branch: str
    is_git: bool


def survey_repository(root: Path, shipped: Matrix) -> RepositorySurvey:
    """Look at the repository in `root`. shipped: the matrix with the axes and the published tables."""
    axes = shipped.axes
    checkout = GitCheckout(root)
    files = sorted(_files(root, checkout))
    fork = find_fork(files, checkout, axes)
    own = _own_stacks(files)
    scripts = _scripts(root, files)
    found = tuple(find_patches(root, files, own, axes, _released_paths()))
    pins = find_pins(
        root,
        [name for name in files if _can_pin(PurePosixPath(name), found)],
        axes,
        submodules=checkout.submodules() if checkout.is_git else (),
        version_at=lambda axis, commit: commit_version(axis, commit, mirror_folders()),
    )
    patches = with_versions(found, files, _folder_pins(pins, shipped), axes)
    return RepositorySurvey(
        root=root,
        kind=_kind(patches, fork, files, scripts),
        patches=patches,
        fork=fork,
        scripts=scripts,
        pins=_pins_that(pins, is_known=True),
        unknown=_pins_that(pins, is_known=False),
        own_stacks=own,
        workflows=tuple(
            name for name in files if name.startswith(tuple(_CI_FILES)) and "template" not in name.lower()
        ),
        ci=_ci_system(files, checkout.remotes() if checkout.is_git else {}),
        branch=checkout.branch() if checkout.is_git else "",
        is_git=checkout.is_git,
    )


def _released_paths() -> Callable[[str], Collection[str]]:
    """The paths of the files that any release of a package has, from the shipped index."""
    pack = shipped_pack().pack
    return pack.paths if pack else lambda _package: ()


def _can_pin(path: PurePosixPath, patches: Sequence[FoundPatches]) -> bool:
    """Whether a file can pin versions; a README names many, and counts beside or above patches only."""
    if is_for_other_hardware(path):
        return False
    return not is_readme(path) or any(
        PurePosixPath(one.folder).is_relative_to(path.parent) for one in patches
    )


def _pins_that(
    pins: Mapping[str, Mapping[str, PinnedVersion]], *, is_known: bool
) -> dict[str, dict[str, PinnedVersion]]:
    chosen = {
        folder: {axis: pin for axis, pin in ones.items() if pin.is_known == is_known}
        for folder, ones in pins.items()
    }
    return {folder: ones for folder, ones in chosen.items() if ones}


def _folder_pins(
    pins: Mapping[str, Mapping[str, PinnedVersion]], shipped: Matrix
) -> dict[str, dict[str, PinnedVersion]]:
    """Folder -> axis -> pin, with what the Dockerfiles of the folder pin, and what is published for that."""
    found: dict[str, dict[str, PinnedVersion]] = {}
    for name, ones in pins.items():
        path = PurePosixPath(name)
        inside = found.setdefault(str(path.parent) if is_dockerfile(path) else name, {})
        for axis, pin in ones.items():
            inside.setdefault(axis, pin)
    for inside in found.values():
        known = {axis: pin.version for axis, pin in inside.items() if pin.is_known}
        for axis, (version, title) in published_with(known, shipped).items():
            inside.setdefault(axis, PinnedVersion(version=version, where=title))
    return found


def _files(root: Path, checkout: GitCheckout) -> Iterable[str]:
    if checkout.is_git:
        found = (name for name in checkout.files() if (root / name).is_file())
    else:
        found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return itertools.islice((name for name in found if not _MADE.search(name)), MAX_FILES)


def _ci_system(files: Sequence[str], remotes: Mapping[str, str]) -> str:
    """The CI system that gates changes: of the server of `origin`, else the one whose files are here."""
    server = re.match(r"(?:\w+://)?(?:[^@/]*@)?([\w.-]+)", remotes.get("origin", ""))
    for name in ("gitlab", "gitcode", "github"):
        if server and name in server[1].lower():
            return name
    return next(
        (ci for start, ci in _CI_FILES.items() if any(one.startswith(start) for one in files)), "github"
    )


def _kind(
    patches: Sequence[FoundPatches], fork: FoundFork | None, files: Sequence[str], scripts: Sequence[str]
) -> str:
    if any(found.layout == PLUGIN for found in patches):
        return "a plugin with patches by commit (verl_npu)"
    if fork is not None:
        return f"the source of {fork.axis.replace('_', '-')}, or a fork of it"
    if any(PurePosixPath(name).name == REQUIRED_VERL for name in files):
        return "recipes for verl"
    if patches:
        return "a repository with patches"
    return (
        "a repository with launch scripts"
        if scripts
        else "an empty repository"
        if not files
        else "a repository"
    )


def _own_stacks(files: Sequence[str]) -> tuple[str, ...]:
    found = re.compile(rf"patches/([^/]+)/[^/]+/{PATCH_HEADER}")
    return tuple(sorted({match[1] for name in files if (match := found.fullmatch(name))}))


def _scripts(root: Path, files: Sequence[str]) -> tuple[str, ...]:
    """The top folders with launch scripts; "." for scripts at the top."""
    folders = set()
    for name in files:
        if name.endswith(".sh"):
            try:
                data = (root / name).read_bytes()[:_MAX_SCRIPT]
            except OSError:
                continue
            if _LAUNCH.search(data):
                folders.add(name.split("/")[0] if "/" in name else ".")
    return (".",) if "." in folders else tuple(sorted(folders))
