"""Finds out what a repository is: patches and their layout, scripts, pinned versions, the upstream of a fork.

Nothing of the repository is executed. Only files that git tracks (or, without git, all files) are read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.matrix.model.definitions import Axis
from harness.patchstack.format.patch_header import FILE_NAME as PATCH_HEADER
from harness.patchstack.stacks.patch_sources import names_version
from harness.patchstack.stacks.patch_stack import PATCH_SUFFIXES, SERIES
from harness.patchstack.stacks.stack_import import PLUGIN, QUILT, RECIPE, REQUIRED_VERL
from harness.sources.git.checkout import GitCheckout
from harness.workspace.adoption.fork_base import FoundFork, find_fork
from harness.workspace.adoption.pinned_versions import PinnedVersion, find_pins

MAX_FILES = 50_000
_PLUGIN_PATCH = re.compile(r"(?:(?P<top>.+)/)?patch/[^/]+/[^/]+/[^/]+\.patch")
#: The package of a changed file: `a/verl/x.py`, or of quilt `verl-0.9.0.orig/verl/x.py`.
_CHANGED = re.compile(rb"^(?:\+\+\+|---) [^/\s]+/(?:src/)?([A-Za-z_]\w*)/", re.MULTILINE)
#: The package of a file changed by a patch for `patch -p0`: `verl/x.py`.
_CHANGED_P0 = re.compile(rb"^(?:\+\+\+|---) (?:\./)?([A-Za-z_]\w*)/", re.MULTILINE)
#: Import name -> axis, where they differ.
_IMPORTS = {"megatron": "megatron_core"}
#: What a launch script of this stack contains.
_LAUNCH = re.compile(rb"python3?\s+(?:-\S+\s+)*-m\s+(?:verl|recipe)\.|verl\.trainer\.|main_ppo|main_dapo")
_MAX_SCRIPT = 1 << 20
#: Folders, and words in names of requirement files, that are for other hardware than NPUs.
_OTHER_HARDWARE = re.compile(r"cuda|cu\d+|nvidia|gpu|rocm|amd|xpu|hpu|tpu|musa")
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
class FoundPatches:
    """Patches for one entry of the section `patches`.

    version: the release of the upstream that the folder or all the files are named after, or "". reason: why
    they were not placed, or "".
    """

    folder: str
    layout: str
    upstream: str
    files: tuple[str, ...]
    version: str = ""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RepositorySurvey:
    """What a repository has. kind: in words. scripts: folders with launch scripts. pins: folder -> axis ->
    pin. own_stacks: upstreams with stacks of this project's format. workflows: files of its CI. ci: its CI
    system. branch: the branch that others are merged into, "" if it is not known.
    """

    root: Path
    kind: str
    patches: tuple[FoundPatches, ...]
    fork: FoundFork | None
    scripts: tuple[str, ...]
    pins: Mapping[str, Mapping[str, PinnedVersion]]
    own_stacks: tuple[str, ...]
    workflows: tuple[str, ...]
    ci: str
    branch: str
    is_git: bool


def survey_repository(root: Path, axes: Mapping[str, Axis]) -> RepositorySurvey:
    """Look at the repository in `root`. axes: the axes of the shipped matrix."""
    checkout = GitCheckout(root)
    files = sorted(_files(root, checkout))
    fork = find_fork(files, checkout, axes)
    own = _own_stacks(files)
    patches = tuple(_patches(root, files, own, axes))
    scripts = _scripts(root, files)
    pins = find_pins(root, [name for name in files if not _is_for_other_hardware(PurePosixPath(name))], axes)
    return RepositorySurvey(
        root=root,
        kind=_kind(patches, fork, files, scripts),
        patches=patches,
        fork=fork,
        scripts=scripts,
        pins=pins,
        own_stacks=own,
        workflows=tuple(name for name in files if name.startswith(tuple(_CI_FILES))),
        ci=_ci_system(files, checkout.remotes() if checkout.is_git else {}),
        branch=checkout.branch() if checkout.is_git else "",
        is_git=checkout.is_git,
    )


def _files(root: Path, checkout: GitCheckout) -> Iterable[str]:
    if checkout.is_git:
        found = (name for name in checkout.files() if (root / name).is_file())
    else:
        found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return itertools.islice((name for name in found if not _MADE.search(name)), MAX_FILES)


def _is_for_other_hardware(path: PurePosixPath) -> bool:
    """Whether a folder of the path, or a word in the name of a file, names other hardware."""
    words = (*path.parts[:-1], *re.split(r"[-_.]", path.name))
    return any(_OTHER_HARDWARE.fullmatch(word.lower()) for word in words)


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
        # Files that change nothing are damaged patches: the check says so.
        upstreams = {one for one in changed.values() if one is not None}
        upstream = upstreams.pop() if len(upstreams) == 1 else ""
        reason = (
            "they are for other hardware than NPUs"
            if _is_for_other_hardware(PurePosixPath(folder, "x"))
            else ""
        )
        if not upstream and not reason:
            upstreams = {one for one in changed.values() if one is not None}
            p0 = {axis for name in names for axis in _axes_of(root / name, axes, _CHANGED_P0) or ()}
            reason = _why_not_placed(sorted(filter(None, upstreams)), sorted(p0))
        version = _named_version(folder, names, axes[upstream]) if upstream and not layout else ""
        yield FoundPatches(
            folder=folder,
            layout=layout,
            upstream=upstream,
            files=tuple(names),
            version=version,
            reason=reason,
        )


def _why_not_placed(known: Sequence[str], for_p0: Sequence[str]) -> str:
    if not known and for_p0:
        return f"they change {', '.join(for_p0)} with -p0: write them again for -p1 (a/PATH, b/PATH)"
    if not known:
        return "they change no package that is an axis of the matrix"
    if len(known) == 1:
        return f"they change {known[0]} and projects that are no axis of the matrix: give {known[0]} a folder"
    return f"they change several projects ({', '.join(known)}): give each a folder of its own"


def _named_version(folder: str, files: Sequence[str], axis: Axis) -> str:
    """The release of the upstream that the path of the folder or the names of all files contain, or "".

    In paths it is `verl/0.6.1/patches` or `verl-v0.6.1`, in names of files `verl-0.6.1-fix.patch`.
    """
    upstream = "|".join({re.escape(name).replace("_", "[-_]") for name in (axis.name, axis.package) if name})
    named = re.compile(
        rf"(?:{upstream})[-_ =/]*v?(?P<version>\d+(?:\.\d+)+(?:[-.]?(?:rc|post|dev)\d+)*)(?![.\w])"
    )
    parts = list(named.finditer(folder))
    if parts:
        return parts[-1]["version"]
    found = [named.match(PurePosixPath(name).stem) for name in files]
    versions = {one["version"] if one else "" for one in found}
    return versions.pop() if len(versions) == 1 else ""


def _upstream_of(file: Path, axes: Mapping[str, Axis]) -> str | None:
    """The axis of the package whose files a patch changes; "" for others, None if it changes no package."""
    found = _axes_of(file, axes, _CHANGED)
    return None if found is None else found.pop() if len(found) == 1 else ""


def _axes_of(file: Path, axes: Mapping[str, Axis], changed: re.Pattern[bytes]) -> set[str] | None:
    """The axes of the packages whose files a patch changes; None if it changes no package."""
    try:
        data = file.read_bytes()[:_MAX_SCRIPT]
    except OSError:
        return None
    names = [name.decode() for name in changed.findall(data)]
    return {_IMPORTS.get(name, name) for name in names} & axes.keys() if names else None


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
