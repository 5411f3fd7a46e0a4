"""The stacks of a first matrix: those that the repository pins, and shipped ones that its patches are for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from packaging.version import Version

from harness.errors import Location
from harness.matrix.model.definitions import PatchPlace, Stack
from harness.matrix.model.versions import parse_version
from harness.matrix.version_matrix import Matrix
from harness.outcome import Status
from harness.patchstack.stacks.patch_sources import PatchSources, PlacedPatch
from harness.settings import MATRIX_FILE
from harness.workspace.adoption.found_patches import FoundPatches
from harness.workspace.adoption.published_versions import published_with
from harness.workspace.adoption.repository_survey import RepositorySurvey
from harness.workspace.pins.dockerfile_pins import is_dockerfile
from harness.workspace.pins.pinned_versions import PinnedVersion

#: The Python of cells whose repository does not say. Every torch_npu of the matrix has wheels for it.
_PYTHON = "3.11"
#: More stacks than this are no first matrix; the user adds the others.
_MOST_STACKS = 8
#: A folder that pins none of these is not about this stack.
_NPU_AXES = frozenset({"verl", "vllm_ascend", "torch_npu"})


@dataclass(frozen=True, kw_only=True)
class OwnStack:
    """A stack that a folder of the repository pins. axes: axis -> (version, where it is from)."""

    name: str
    title: str
    source: str
    axes: Mapping[str, tuple[str, str]]


def own_stacks(survey: RepositorySurvey, shipped: Matrix) -> list[OwnStack]:
    """The stacks that the repository itself pins: one for each folder with pins, and that of a fork."""
    fork = survey.fork
    patched = patched_axes(survey)
    found: list[OwnStack] = []
    for folder, pins in _stack_pins(survey).items():
        axes = {axis: (pin.version, pin.where) for axis, pin in pins.items()}
        files = dict.fromkeys(pin.where.rpartition(":")[0] for pin in pins.values())
        if fork and fork.base and fork.version:
            base = (
                "the commit of today; later commits are its patches"
                if fork.of == "HEAD"
                else f"where HEAD left {fork.of}"
                if fork.of
                else f"the release before HEAD; base {fork.base}"
            )
            axes[fork.axis] = (fork.version, base)
            files[f"git history, {fork.of or fork.base}"] = None
        if not (_NPU_AXES | patched) & axes.keys():
            continue
        listed = published_with({axis: version for axis, (version, _) in axes.items()}, shipped)
        commits = survey.unknown.get(folder, {})
        for axis, (version, title) in listed.items():
            commit = commits.get(axis)
            axes[axis] = (
                (version + commit.version, f"{commit.where}; the version as {title} lists it")
                if commit
                else (version, f"not pinned here; {title} lists it")
            )
        if "python" not in axes:
            axes["python"] = (_PYTHON, "not pinned here; write the Python of your environment")
        axes["device"] = ("npu", "checks that need an NPU are not run where there is none")
        where = "" if folder == "." else f"/{folder}"
        found.append(
            OwnStack(
                name=_stack_name(survey.root.resolve().name, folder, {one.name for one in found}),
                title=f"what {survey.root.resolve().name}{where} pins",
                source=", ".join(files),
                axes=axes,
            )
        )
    return found[:_MOST_STACKS]


def patched_axes(survey: RepositorySurvey) -> frozenset[str]:
    """The upstreams that patches of the repository were placed for, in layouts that do not name them."""
    return frozenset(one.upstream for one in survey.patches if one.upstream and not one.reason)


def _stack_pins(survey: RepositorySurvey) -> dict[str, Mapping[str, PinnedVersion]]:
    """The pins of each stack: of every folder, in a fork of its top folder, and of Dockerfiles.

    A Dockerfile installs the requirements of its folder and those at the top, too. Left out are those that
    pin no package for NPUs, those for older CANN releases than the newest one unless patches are for their
    versions, and those with the versions of another one.
    """
    top = survey.pins.get(".", {})
    folders = {
        folder: pins
        for folder, pins in survey.pins.items()
        if not is_dockerfile(PurePosixPath(folder)) and (folder == "." or not survey.fork)
    }
    stacks: dict[str, Mapping[str, PinnedVersion]] = {".": top, **folders}
    files = {
        name: merged
        for name, pins in survey.pins.items()
        # A fork of verl or vllm-ascend installs itself.
        if is_for_cann(name, pins)
        and (
            _NPU_AXES & (merged := {**top, **folders.get(str(PurePosixPath(name).parent), {}), **pins}).keys()
            or survey.fork
        )
    }
    newest = max((parse_version("cann", pins["cann"].version) for pins in files.values()), default=None)
    if newest is not None and "cann" in top:
        newest = max(newest, parse_version("cann", top["cann"].version))
    is_bare = not {"torch_npu", "vllm_ascend"} & top.keys()
    known = [_versions(pins) for pins in stacks.values()]
    patched = {(one.upstream, one.version) for one in survey.patches if one.version}
    for name, pins in files.items():
        is_newest = parse_version("cann", pins["cann"].version) == newest
        if (is_newest or patched & _versions(pins).items()) and _versions(pins) not in known:
            stacks[name] = pins
            known.append(_versions(pins))
            folder = str(PurePosixPath(name).parent)
            if folder != "." and _versions(stacks.get(folder, {})).items() <= _versions(pins).items():
                stacks.pop(folder, None)  # The Dockerfile installs these, and says for which NPU.
    if is_bare and len(stacks) > 1:  # The others have the same requirements, and more.
        del stacks["."]
    return stacks


def is_for_cann(name: str, pins: Mapping[str, PinnedVersion]) -> bool:
    """Whether these are the pins of a Dockerfile with a CANN image for an NPU that the matrix has."""
    return is_dockerfile(PurePosixPath(name)) and {"cann", "soc"} <= pins.keys()


def _versions(pins: Mapping[str, PinnedVersion]) -> dict[str, str]:
    return {axis: pin.version for axis, pin in pins.items()}


def shipped_stacks(survey: RepositorySurvey, shipped: Matrix, own: Sequence[OwnStack]) -> list[str]:
    """The shipped stacks that the patches of the repository are for.

    Also the newest one for each upstream that has patches and is in none of these or of its own stacks, and
    the newest release of verl if there are no stacks at all.
    """
    covered = {axis for stack in own for axis in stack.axes}
    places = tuple(
        PatchPlace(
            upstream=one.upstream,
            folder=one.folder,
            layout=one.layout,
            files=one.only,
            strip=one.strip,
            inside=one.inside,
            where=Location(MATRIX_FILE),
        )
        for one in survey.patches
        if not one.reason
    )
    sources = PatchSources(root=survey.root, shipped=None, places=places, axes=shipped.axes)
    pinned = [one for one in sources.placed if one.pin]
    releases = [
        one for one in survey.patches if one.version and not one.reason and one.upstream not in covered
    ]
    named = [
        stack.name
        for stack in shipped.stacks.values()
        if stack.name not in shipped.migrations and _is_named(stack, pinned, releases, shipped)
    ]
    covered = {axis for name in named for axis in shipped.stacks[name].axes} | covered
    missing = [axis for axis in shipped.axes if axis in patched_axes(survey) and axis not in covered]
    if not missing:
        return named or ([] if covered else _newest(shipped, "verl"))
    return list(dict.fromkeys([*named, *(name for axis in missing for name in _newest(shipped, axis))]))


def _newest(shipped: Matrix, axis: str) -> list[str]:
    """The shipped stack with the newest release of verl among those that have the axis, if there is one.

    A stack whose versions contradict each other cannot be installed: it is taken only if all do.
    """
    contradictory = {
        cell.stack
        for cell in shipped.all_cells
        if (expected := shipped.expectation_for(cell, "resolve")) and expected.state == Status.FAIL
    }
    releases = [
        (stack.name not in contradictory, Version(stack.axes["verl"]), stack.name)
        for stack in shipped.stacks.values()
        if axis in stack.axes and "@" not in stack.axes.get("verl", "@")
    ]
    return [max(releases)[-1]] if releases else []


def _is_named(
    stack: Stack, pinned: Sequence[PlacedPatch], releases: Sequence[FoundPatches], shipped: Matrix
) -> bool:
    """Whether a patch is for a commit or release of the stack by the name of its folder or file."""
    return any(
        one.upstream in stack.axes and one.is_for(shipped.axes[one.upstream], stack.axes[one.upstream])
        for one in pinned
    ) or any(_is_release(stack.axes.get(one.upstream, ""), one.version) for one in releases)


def _is_release(value: str, version: str) -> bool:
    """Whether the value of a stack is this release, or the same commit."""
    if "@" in value or "@" in version:
        return value == version
    return bool(value) and Version(value) == Version(version)


def _stack_name(repository: str, folder: str, taken: Collection[str]) -> str:
    """A name that no other stack has. Of a Dockerfile, the words after `Dockerfile` count."""
    path = PurePosixPath(folder)
    if is_dockerfile(path):
        folder = re.sub(r"(?i)(docker|container)file", "", path.name)
    name = _name(f"{repository}/{folder}")
    return next(one for n in itertools.count(1) if (one := f"{name}-{n}" if n > 1 else name) not in taken)


def _name(text: str) -> str:
    """A name for a stack: lower-case letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:48].strip("-")
    return name or "this-repository"
