"""Finds out what a repository is: patches and their layout, scripts, pinned versions, the upstream of a fork.

Nothing of the repository is executed. Only files that git tracks (or, without git, all files) are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.matrix.model.definitions import Axis
from harness.patchstack.format.patch_header import FILE_NAME as PATCH_HEADER
from harness.patchstack.stacks.patch_sources import names_version
from harness.patchstack.stacks.patch_stack import PATCH_SUFFIXES, SERIES
from harness.patchstack.stacks.stack_import import PLUGIN, QUILT, RECIPE, REQUIRED_VERL
from harness.sources.git.branch_patches import MAX_COMMITS
from harness.sources.git.checkout import GitCheckout
from harness.workspace.adoption.pinned_versions import PinnedVersion, find_pins

MAX_FILES = 50_000
_PLUGIN_PATCH = re.compile(r"(?:(?P<top>.+)/)?patch/[^/]+/[^/]+/[^/]+\.patch")
_CHANGED = re.compile(rb"^(?:\+\+\+ b/|--- a/)(?:src/)?([A-Za-z_][A-Za-z0-9_]*)/", re.MULTILINE)
#: Import name -> axis, where they differ.
_IMPORTS = {"megatron": "megatron_core"}
#: What a launch script of this stack contains.
_LAUNCH = re.compile(rb"python3?\s+(?:-\S+\s+)*-m\s+(?:verl|recipe)\.|verl\.trainer\.|main_ppo|main_dapo")
_MAX_SCRIPT = 1 << 20
#: The module that only this project has -> its axis.
_PROJECTS = {"verl/trainer": "verl", "vllm_ascend/__init__.py": "vllm_ascend", "vllm/engine": "vllm"}


@dataclass(frozen=True, kw_only=True)
class FoundPatches:
    """Patches for one entry of the section `patches`. reason: why they were not placed, or ""."""

    folder: str
    layout: str
    upstream: str
    files: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class FoundFork:
    """The fork of an upstream. version: the release it is based on. base: "" if it could not be found.

    commits: number of own commits. note: why there is no base.
    """

    axis: str
    base: str
    version: str
    commits: int
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RepositorySurvey:
    """What a repository has. kind: in words. scripts: folders with launch scripts. pins: folder -> axis ->
    pin. own_stacks: upstreams with stacks of this project's format. workflows: files of its CI.
    """

    root: Path
    kind: str
    patches: tuple[FoundPatches, ...]
    fork: FoundFork | None
    scripts: tuple[str, ...]
    pins: Mapping[str, Mapping[str, PinnedVersion]]
    own_stacks: tuple[str, ...]
    workflows: tuple[str, ...]
    is_git: bool


def survey_repository(root: Path, axes: Mapping[str, Axis]) -> RepositorySurvey:
    """Look at the repository in `root`. axes: the axes of the shipped matrix."""
    checkout = GitCheckout(root)
    files = sorted(_files(root, checkout))
    fork = _fork(files, checkout, axes)
    own = _own_stacks(files)
    patches = tuple(_patches(root, files, own, axes))
    scripts = _scripts(root, files)
    pins = find_pins(root, files, axes)
    return RepositorySurvey(
        root=root,
        kind=_kind(patches, fork, files, scripts),
        patches=patches,
        fork=fork,
        scripts=scripts,
        pins=pins,
        own_stacks=own,
        workflows=tuple(
            name for name in files if name.startswith((".github/workflows/", ".gitlab-ci", "Jenkinsfile"))
        ),
        is_git=checkout.is_git,
    )


def _files(root: Path, checkout: GitCheckout) -> Iterable[str]:
    if checkout.is_git:
        return [name for name in checkout.files() if (root / name).is_file()][:MAX_FILES]
    found = []
    for path in root.rglob("*"):
        name = path.relative_to(root)
        if (
            not any(part.startswith(".npu") or part == "node_modules" for part in name.parts)
            and path.is_file()
        ):
            found.append(name.as_posix())
        if len(found) >= MAX_FILES:
            break
    return found


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


def _patches(
    root: Path, files: Sequence[str], own: Sequence[str], axes: Mapping[str, Axis]
) -> Iterator[FoundPatches]:
    """The patch files of the repository, grouped by the folder that an entry can name."""
    left = {
        name
        for name in files
        if PurePosixPath(name).suffix in PATCH_SUFFIXES
        and not any(name.startswith(f"patches/{upstream}/") for upstream in own)
    }
    groups: dict[tuple[str, str], list[str]] = {}
    required = [PurePosixPath(name).parent for name in files if PurePosixPath(name).name == REQUIRED_VERL]
    series = [PurePosixPath(name).parent for name in files if PurePosixPath(name).name == SERIES]
    for name in sorted(left):
        path = PurePosixPath(name)
        plugin = _PLUGIN_PATCH.fullmatch(name)
        if plugin:
            groups.setdefault((plugin["top"] or ".", PLUGIN), []).append(name)
        elif any(path.is_relative_to(folder) for folder in required):
            nearest = max(
                (one for one in required if path.is_relative_to(one)), key=lambda one: len(one.parts)
            )
            groups.setdefault((str(nearest), RECIPE), []).append(name)
        elif path.parent in series:
            groups.setdefault((str(path.parent), QUILT), []).append(name)
        else:
            parent = path.parent.parent if names_version(path.parent.name) else path.parent
            groups.setdefault((str(parent), ""), []).append(name)
    for (folder, layout), names in groups.items():
        if layout in {PLUGIN, RECIPE}:
            yield FoundPatches(folder=folder, layout=layout, upstream="", files=tuple(names))
            continue
        changed = {name: _upstream_of(root / name, axes) for name in names}
        upstreams = set(changed.values())
        upstream = upstreams.pop() if len(upstreams) == 1 else ""
        reason = ""
        if not upstream:
            known = sorted(set(filter(None, changed.values())))
            reason = (
                f"they change several projects ({', '.join(known)}): give each a folder of its own"
                if known
                else "they change no package that is an axis of the matrix"
            )
        yield FoundPatches(folder=folder, layout=layout, upstream=upstream, files=tuple(names), reason=reason)


def _upstream_of(file: Path, axes: Mapping[str, Axis]) -> str:
    """The axis of the package whose files a patch changes, or ""."""
    try:
        data = file.read_bytes()[:_MAX_SCRIPT]
    except OSError:
        return ""
    found = {_IMPORTS.get(name.decode(), name.decode()) for name in _CHANGED.findall(data)} & axes.keys()
    return found.pop() if len(found) == 1 else ""


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


def _fork(files: Sequence[str], checkout: GitCheckout, axes: Mapping[str, Axis]) -> FoundFork | None:
    """Which upstream the repository is a fork of, and where it left it."""
    axis = next(
        (
            axis
            for module, axis in _PROJECTS.items()
            if axis in axes and any(name == module or name.startswith(f"{module}/") for name in files)
        ),
        "",
    )
    if not axis:
        return None
    if not checkout.is_git or not checkout.commit("HEAD"):
        return FoundFork(axis=axis, base="", version="", commits=0, note="it is no git repository")
    pattern = axes[axis].tag.replace("{version}", "*") or "v*"
    tag = checkout.nearest_tag(pattern)
    version = tag.removeprefix(pattern.partition("*")[0]) if tag else ""
    remote = _upstream_branch(checkout, axes[axis].repository)
    for base in filter(None, (remote, tag)):
        commits = checkout.count(base, "HEAD")
        if commits is not None and commits <= MAX_COMMITS:
            return FoundFork(axis=axis, base=base, version=version, commits=commits)
    note = (
        f"HEAD is more than {MAX_COMMITS} commits after {tag}"
        if tag
        else "it has no tag and no branch of the upstream"
    )
    return FoundFork(axis=axis, base="", version=version, commits=0, note=note)


def _upstream_branch(checkout: GitCheckout, repository: str) -> str:
    """The main branch of the upstream among the remote branches, or ""."""
    name = PurePosixPath(repository.removesuffix(".git")).name
    for remote, url in checkout.remotes().items():
        is_upstream = repository.removesuffix(".git") == url.removesuffix(".git")
        if remote == "upstream" or (is_upstream and name):
            for branch in ("main", "master"):
                if checkout.commit(f"refs/remotes/{remote}/{branch}"):
                    return f"{remote}/{branch}"
    return ""
