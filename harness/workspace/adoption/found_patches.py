"""The patch files of a repository, and the entry of the section `patches` for each of them.

Where a patch belongs follows from the paths that it changes: `a/verl/utils/x.py` is for verl, and so is
`a/rl/verl/utils/x.py` of a repository that keeps the sources of verl in `rl/verl`.
"""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from harness.matrix.model.definitions import Axis
from harness.patchstack.stacks.patch_sources import names_version
from harness.patchstack.stacks.patch_stack import PATCH_SUFFIXES, SERIES
from harness.patchstack.stacks.stack_import import PLUGIN, QUILT, RECIPE, REQUIRED_VERL
from harness.sources.git.patch_paths import changed_paths
from harness.workspace.pins.other_hardware import is_for_other_hardware
from harness.workspace.pins.pinned_versions import PinnedVersion, axis_names, normal_name

_PLUGIN_PATCH = re.compile(r"(?:(?P<top>.+)/)?patch/[^/]+/[^/]+/[^/]+\.patch")
#: Import name -> axis, where they differ.
_IMPORTS = {"megatron": "megatron_core"}
_MAX_BYTES = 4 << 20
#: A command that applies patches, and the names of the files that it names, without their folders.
_APPLIES = re.compile(r"\s*(?!#).*(?:\bgit\s+(?:-\S+\s+\S+\s+)*(?:apply|am)\b|\bpatch\s)")
_APPLIED = re.compile(r"(?:^|[\s/\"'=<])([^\s/\"'<>|;&$*]+\.(?:patch|diff))(?=[\s\"';&|)]|$)")
#: Folders beside the package in the repositories of Python projects.
_BESIDE_PACKAGES = frozenset(
    {"benchmark", "benchmarks", "cmake", "csrc", "doc", "docker", "docs", "example", "examples", "recipe"}
    | {"recipes", "requirements", "script", "scripts", "test", "tests", "tools", ".buildkite", ".github"}
)
NO_AXIS = "they change no package that is an axis of the matrix"


@dataclass(frozen=True, kw_only=True)
class FoundPatches:
    """Patches for one entry of the section `patches`.

    version: the release of the upstream that the folder or the files are named after, or "". only: globs of
    the files, if the folder has others, too. strip: the number of leading components in their paths. inside:
    the folder of the sources that the paths are relative to, "" for the top. reason: why they were not
    placed, or "". commit: the commit of the upstream that they are for, if no clone here
    tells its version.
    """

    folder: str
    layout: str
    upstream: str
    files: tuple[str, ...]
    version: str = ""
    only: tuple[str, ...] = ()
    strip: int = 1
    inside: str = ""
    reason: str = ""
    commit: str = ""


@dataclass(frozen=True, kw_only=True)
class _Target:
    """What a patch file is for. is_open: it changes no package, so that it can belong to those beside it."""

    upstream: str = ""
    strip: int = 1
    inside: str = ""
    version: str = ""
    reason: str = ""
    is_open: bool = False


def find_patches(
    root: Path,
    files: Sequence[str],
    own: Sequence[str],
    axes: Mapping[str, Axis],
    released: Callable[[str], Collection[str]] = lambda _package: (),
) -> Iterator[FoundPatches]:
    """Every patch file once, grouped by the entry that can name it.

    own: upstreams with stacks in the format of this project. released: the paths of the files that any
    release of a package has.
    """
    names = [
        name
        for name in sorted(files)
        if PurePosixPath(name).suffix in PATCH_SUFFIXES
        and not any(name.startswith(f"patches/{upstream}/") for upstream in own)
    ]
    # A patch changes sources: not the interpreter, although a folder of a project can be named `python`.
    sources = {name: axis for name, axis in axes.items() if axis.package}
    scripts = _applied_by_scripts(root, files)
    plain: dict[str, list[str]] = {}
    for (folder, layout), inside in _by_layout(names, files).items():
        if layout in {PLUGIN, RECIPE}:
            yield FoundPatches(folder=folder, layout=layout, upstream="", files=tuple(inside))
        elif layout == QUILT:
            yield _series(root, folder, inside, sources)
        else:
            plain[folder] = inside
    for folder, inside in plain.items():
        below = [name for name in names if PurePosixPath(name).is_relative_to(folder)]
        targets = _targets(root, folder, inside, files, sources, released)
        for target in dict.fromkeys(targets.values()):
            mine = tuple(name for name in inside if targets[name] == target)
            script, order = _order(folder, mine, scripts) if target.upstream else ("", ())
            direct = tuple(name for name in mine if str(PurePosixPath(name).parent) == folder)
            unused = tuple(name for name in direct if order and name not in order)
            # Folders for versions below this one are not for the version that the script installs.
            rest = tuple(name for name in mine if name not in (*order, *unused))
            why = f"{script} applies others of this folder, but not these"
            for group, reason in ((order, ""), (unused, why), (rest, target.reason)):
                if group:
                    yield FoundPatches(
                        folder=folder,
                        layout="",
                        upstream=target.upstream,
                        files=group,
                        version=target.version,
                        only=_globs(folder, group, below, ordered=bool(order)),
                        strip=target.strip,
                        inside=target.inside,
                        reason=reason,
                    )


def with_versions(
    patches: Sequence[FoundPatches],
    files: Sequence[str],
    pinned: Mapping[str, Mapping[str, PinnedVersion]],
    axes: Mapping[str, Axis],
) -> tuple[FoundPatches, ...]:
    """The patches; where projects have patches for one upstream or pin it, only for the version of their own.

    A project is the nearest folder above the patches that has other files, or one that is named after the
    upstream and has patches like the tree of its sources (`vllm/vllm/engine/x.patch`). If several projects
    have patches for an upstream, those of one that pins no version are left out: they must not get into cells
    of the others. pinned: folder -> axis -> pin.
    """
    names = axis_names(axes)
    with_files = {path.parent for path in map(PurePosixPath, files) if path.suffix not in PATCH_SUFFIXES}
    projects = {(one.folder, one.upstream): _project(one, with_files, names) for one in patches}
    result = []
    for one in patches:
        project = projects[one.folder, one.upstream]
        is_open = bool(one.upstream) and not (one.layout or one.version or one.reason or _has_versions(one))
        others = {found for (_, upstream), found in projects.items() if upstream == one.upstream} - {project}
        known = {pins[one.upstream].version for pins in pinned.values() if one.upstream in pins}
        above = (pinned.get(str(folder), {}).get(one.upstream) for folder in (project, *project.parents))
        pin = next(filter(None, above), None)
        if is_open and pin and (others or not pin.is_known or len(known) > 1):
            if pin.is_known:
                result.append(replace(one, version=pin.version))
            else:
                reason = _unknown(pin, one.upstream)
                result.append(replace(one, commit=pin.version.removeprefix("@"), reason=reason))
        elif is_open and others:
            reason = f"other projects here patch {one.upstream}, too, and this one pins no version of it: "
            result.append(replace(one, reason=f"{reason}write `versions`"))
        else:
            result.append(one)
    return tuple(result)


def _unknown(pin: PinnedVersion, upstream: str) -> str:
    """Why patches for a commit that no clone has cannot be placed."""
    return (
        f"{pin.where} pins the commit {pin.version[1:13]} of {upstream}, and no clone here tells its "
        "version: set NPU_MATRIX_MIRRORS to a folder with one, and run `npu-matrix init` again"
    )


def _project(
    found: FoundPatches, with_files: Container[PurePosixPath], names: Mapping[str, str]
) -> PurePosixPath:
    """The folder of the project that patches belong to."""
    folder = PurePosixPath(found.folder)
    for at, part in enumerate(folder.parts[:-1]):
        package = folder.parts[at + 1]
        if found.upstream and names.get(normal_name(part)) == found.upstream == _IMPORTS.get(
            package, package
        ):
            return PurePosixPath(*folder.parts[: at + 1])
    return next((up for up in folder.parents if up in with_files), PurePosixPath("."))


def _has_versions(found: FoundPatches) -> bool:
    """Whether the folders right above the files are named after versions."""
    return any(names_version(PurePosixPath(name).parent.name) for name in found.files)


def _by_layout(names: Sequence[str], files: Sequence[str]) -> dict[tuple[str, str], list[str]]:
    """(folder, layout) -> its patch files. The layout "" is for folders without one."""
    groups: dict[tuple[str, str], list[str]] = {}
    required = [PurePosixPath(name).parent for name in files if PurePosixPath(name).name == REQUIRED_VERL]
    series = {PurePosixPath(name).parent for name in files if PurePosixPath(name).name == SERIES}
    for name in names:
        path = PurePosixPath(name)
        plugin = _PLUGIN_PATCH.fullmatch(name)
        recipes = [folder for folder in required if path.is_relative_to(folder)]
        if plugin:
            key = (plugin["top"] or ".", PLUGIN)
        elif recipes:
            key = (str(max(recipes, key=lambda one: len(one.parts))), RECIPE)
        elif path.parent in series:
            key = (str(path.parent), QUILT)
        else:
            key = (str(path.parent.parent if names_version(path.parent.name) else path.parent), "")
        groups.setdefault(key, []).append(name)
    return groups


def _series(root: Path, folder: str, inside: Sequence[str], axes: Mapping[str, Axis]) -> FoundPatches:
    """A quilt series, which is for one upstream."""
    found = {place[0] for name in inside for place in _places(root / name, axes).values() if place}
    if len(found) > 1:
        reason = f"they change several projects ({', '.join(sorted(found))}): give each a series of its own"
    else:
        reason = "" if found else NO_AXIS
    upstream = found.pop() if len(found) == 1 else ""
    return FoundPatches(folder=folder, layout=QUILT, upstream=upstream, files=tuple(inside), reason=reason)


def _targets(
    root: Path,
    folder: str,
    inside: Sequence[str],
    files: Sequence[str],
    axes: Mapping[str, Axis],
    released: Callable[[str], Collection[str]],
) -> dict[str, _Target]:
    """Patch file -> what it is for. What changes no package goes with the others, if these are for one."""
    if is_for_other_hardware(PurePosixPath(folder, "x")):
        return dict.fromkeys(inside, _Target(reason="they are for other hardware than NPUs"))
    folders = frozenset(str(parent) for name in files for parent in PurePosixPath(name).parents)
    changed = {name: _places(root / name, axes) for name in inside}
    usual = Counter(place for places in changed.values() for place in places.values() if place)
    found = {name: _target(name, places, usual, folders, axes) for name, places in changed.items()}
    for name in (name for name, one in found.items() if one.reason == NO_AXIS):
        found[name] = _inside_package(name, [*changed[name]], axes, released) or found[name]
    known = {one for one in found.values() if one.upstream}
    beside = known.pop() if len(known) == 1 else None
    return {name: beside if beside and one.is_open else one for name, one in found.items()}


_Place = tuple[str, int]
_Places = Mapping[tuple[str, ...], _Place | None]


def _places(file: Path, axes: Mapping[str, Axis]) -> _Places:
    """The parts of each changed path -> the axis whose package it is in, and the components before that."""
    packages = {axis: axis for axis in axes} | {word: axis for word, axis in _IMPORTS.items() if axis in axes}
    try:
        paths = changed_paths(file.read_bytes()[:_MAX_BYTES])
        return {parts: _package(parts, packages) for parts in (PurePosixPath(path).parts for path in paths)}
    except OSError:
        return {}


def _target(
    name: str, places: _Places, usual: Counter[_Place], folders: frozenset[str], axes: Mapping[str, Axis]
) -> _Target:
    """What a patch file is for. usual: how often the patches beside it change a package of this place."""
    found = sorted({place for place in places.values() if place}, key=lambda place: -usual[place])
    upstreams = sorted({axis for axis, _strip in found})
    if not found:
        return _Target(reason=NO_AXIS, is_open=all(map(_is_beside_packages, places)))
    if len(upstreams) > 1:
        return _Target(reason=f"one file changes several projects ({', '.join(upstreams)}): split it")
    upstream, strip = found[0]
    prefix = next(parts for parts, place in places.items() if place == found[0])[1:strip]
    others = (parts for parts, place in places.items() if not place)
    is_foreign = any(not _is_beside_packages((*parts[:1], *parts[strip:])) for parts in others)
    if is_foreign or (prefix and not _is_plausible(prefix, upstream, name, folders, axes)):
        return _Target(reason=NO_AXIS)
    return _Target(upstream=upstream, strip=strip, version=_named_version(name, axes[upstream]))


def _inside_package(
    name: str,
    changed: Sequence[tuple[str, ...]],
    axes: Mapping[str, Axis],
    released: Callable[[str], Collection[str]],
) -> _Target | None:
    """What a patch is for that is applied in the folder of a package, so that its paths do not name it.

    It or its folder must be named after the upstream, and releases must have the files in one folder.
    """
    sources = {"/".join(parts[1:] if parts[0] in {"a", "b"} else parts) for parts in changed}
    strip = int(any(parts[0] in {"a", "b"} for parts in changed))
    words = _words(name)
    for axis in (axis for axis in axes.values() if words & _called(axis)):
        paths = released(axis.package)
        known = [
            {path.removesuffix(f"/{source}") for path in paths if path.endswith(f"/{source}")}
            for source in sources
        ]
        there = [folders for folders in known if folders]  # What the patch adds is in no release.
        folders = set.intersection(*there) if there else set()
        if len(folders) == 1 and 2 * len(there) >= len(known):
            inside = folders.pop()
            return _Target(upstream=axis.name, strip=strip, inside=inside, version=_named_version(name, axis))
    return None


def _package(parts: Sequence[str], packages: Mapping[str, str]) -> tuple[str, int] | None:
    """The axis whose package a changed path is in, and the number of components before its repository."""
    for at, part in enumerate(parts[:-1]):
        if part in _BESIDE_PACKAGES:
            return None
        if part in packages:
            inner = at + 1 if at + 2 < len(parts) and parts[at + 1] in packages else at  # verl/verl/x.py
            return packages[parts[inner]], inner - (inner > 0 and parts[inner - 1] == "src")
    return None


def _is_beside_packages(parts: Sequence[str]) -> bool:
    """Whether a path is that of a file at the top of a repository, or in a folder beside the package."""
    return len(parts) <= 2 or parts[1] in _BESIDE_PACKAGES or parts[0] in _BESIDE_PACKAGES


def _is_plausible(
    prefix: Sequence[str], upstream: str, name: str, folders: frozenset[str], axes: Mapping[str, Axis]
) -> bool:
    """Whether these folders contain the sources of the upstream, and are no package of another project.

    They do if they are folders of this repository, or if the patch or its folder is named after the upstream.
    """
    named = _called(axes[upstream])
    is_named = bool(_words(name) & named) or prefix[-1].replace("-", "_") in named
    return is_named or "/".join(prefix) in folders


def _called(axis: Axis) -> set[str]:
    """The names of an upstream: of its axis, package and repository."""
    called = {axis.name, axis.package, *axis.repository.rpartition("/")[2:]}
    return {one.lower().removesuffix(".git").replace("-", "_") for one in called if one}


def _words(name: str) -> set[str]:
    """What the parts of a path are named after: `vllm-ascend-fix.patch` after vllm_ascend, and vllm."""
    parts = [re.split(r"[-_.]", part.lower()) for part in PurePosixPath(name).parts]
    return {"_".join(words[:end]) for words in parts for end in range(1, len(words) + 1)} | {
        word for words in parts for word in words
    }


def _named_version(name: str, axis: Axis) -> str:
    """The release of the upstream that the path of a patch file contains, or "".

    In folders it is `verl/0.6.1/patches` or `verl-v0.6.1`, in names of files `verl-0.6.1-fix.patch`.
    """
    upstream = "|".join({re.escape(one).replace("_", "[-_]") for one in (axis.name, axis.package) if one})
    named = re.compile(
        rf"(?:{upstream})[-_ =/]*v?(?P<version>\d+(?:\.\d+)+(?:[-.]?(?:rc|post|dev)\d+)*)(?![.\w])"
    )
    path = PurePosixPath(name)
    # A folder for the version right above the files is read for each of them.
    top = path.parent.parent if names_version(path.parent.name) else path.parent
    in_folder = list(named.finditer(str(top)))
    in_name = named.match(path.stem)
    return in_folder[-1]["version"] if in_folder else in_name["version"] if in_name else ""


def _applied_by_scripts(root: Path, files: Sequence[str]) -> dict[str, list[str]]:
    """Shell script -> the names of the patch files that its commands apply, in their order."""
    found = {}
    for name in files:
        if name.endswith(".sh"):
            try:
                text = (root / name).read_bytes()[:_MAX_BYTES].decode("utf-8", "replace")
            except OSError:
                continue
            commands = (line for line in text.splitlines() if _APPLIES.match(line))
            applied = [match[1] for line in commands for match in _APPLIED.finditer(line)]
            if len(applied) > 1:
                found[name] = list(dict.fromkeys(applied))
    return found


def _order(
    folder: str, mine: Sequence[str], scripts: Mapping[str, Sequence[str]]
) -> tuple[str, tuple[str, ...]]:
    """The script that applies most of the files, and these files in its order; none if less than half."""
    direct = {
        PurePosixPath(name).name: name for name in mine if PurePosixPath(name).parent == PurePosixPath(folder)
    }
    orders = {
        script: tuple(direct[name] for name in names if name in direct) for script, names in scripts.items()
    }
    script = max(sorted(orders), key=lambda one: len(orders[one]), default="")
    order = orders.get(script, ())
    return (script, order) if len(order) > 1 and 2 * len(order) >= len(direct) else ("", ())


def _globs(folder: str, mine: Sequence[str], below: Sequence[str], *, ordered: bool) -> tuple[str, ...]:
    """Globs for these files of the folder and for none of the others below it; none if these are all."""
    if len(mine) == len(below) and not ordered:
        return ()
    relative = [PurePosixPath(name).relative_to(folder) for name in mine]
    direct = [PurePosixPath(name) for name in below if PurePosixPath(name).parent == PurePosixPath(folder)]
    if not ordered and len(relative) == len(direct) and all(len(path.parts) == 1 for path in relative):
        return tuple(sorted({f"*{path.suffix}" for path in relative}))
    return tuple(glob.escape(str(path)) for path in relative)
