"""The versions that the files of a repository pin, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import tomllib

from harness.matrix.model.definitions import Axis
from harness.patchstack.stacks.stack_import import REQUIRED_VERL
from harness.workspace.adoption.dockerfile_pins import (
    dockerfile_lines,
    dockerfile_pins,
    is_dockerfile,
    script_pins,
)

_PIN = re.compile(r"(?<![\w.-])([A-Za-z][A-Za-z0-9_.-]*)\s*==\s*([0-9][A-Za-z0-9_.+!]*)(?!\S*\*)")
#: A requirement on a tag of a repository: `verl @ git+https://github.com/verl-project/verl@v0.6.1#egg=verl`.
_DIRECT = re.compile(
    r"(?<![\w.-])([A-Za-z][A-Za-z0-9_.-]*)(?:\[[\w,. -]*\])?\s*@\s*git\+[^\s@\"']+(?:@[\w.-]+[:/][^\s@\"']*)?"
    r"@(?:refs/tags/)?(?:core_)?v?([0-9][A-Za-z0-9_.+!]*)(?=[\s#;\"']|$)"
)
_TAG = re.compile(r"TAG=v?([0-9][\w.]*)\s*")
#: Extras and groups with these words are for NPUs; what others pin is for other hardware or optional.
_FOR_NPU = re.compile(r"npu|ascend|cann")
#: Not setup.py: what it pins are mostly extras of other hardware.
_NAMES = re.compile(rf"requirements[\w.-]*\.txt|pyproject\.toml|constraints[\w.-]*\.txt|{REQUIRED_VERL}")
_PLAIN_DOCKERFILES = frozenset({"Dockerfile", "Containerfile"})
_SCRIPT = ".sh"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PinnedVersion:
    """A version that a file pins. other: places that pin another version of the same package."""

    version: str
    where: str
    other: tuple[str, ...] = ()


def find_pins(
    root: Path, files: Sequence[str], axes: Mapping[str, Axis]
) -> dict[str, dict[str, PinnedVersion]]:
    """Folder -> axis -> the version that the files of the folder pin, "." first.

    Versions of different folders need not go together, so each folder is on its own. In one folder, the first
    file in the order of names counts. A Dockerfile with a name of its own, such as `Dockerfile.a3`, is one of
    several in its folder: it has its path as the key, and its versions are not those of the folder.
    """
    names = _axis_names(axes)
    found: dict[str, dict[str, list[tuple[str, str]]]] = {}
    # Requirements come before a Dockerfile, whose comments and stages may name older versions.
    for name in sorted(files, key=_rank):
        path = PurePosixPath(name)
        in_dockerfile = is_dockerfile(path)
        if not in_dockerfile and not _NAMES.fullmatch(path.name) and path.suffix != _SCRIPT:
            continue
        is_own = in_dockerfile and path.name not in _PLAIN_DOCKERFILES
        for package, version, line in _pins_of(root / name):
            axis = names.get(_normal(package), "")
            if axis and _is_valid(axes[axis], version):
                pins = found.setdefault(name if is_own else str(path.parent), {})
                pins.setdefault(axis, []).append((version, f"{name}:{line}"))
    return {folder: {axis: _first(places) for axis, places in pins.items()} for folder, pins in found.items()}


def _rank(name: str) -> tuple[int, bool, bool, str]:
    path = PurePosixPath(name)
    return name.count("/"), path.suffix == _SCRIPT, is_dockerfile(path), name


def _axis_names(axes: Mapping[str, Axis]) -> dict[str, str]:
    """Name of an axis, its package or its repository -> the axis."""
    found: dict[str, str] = {}
    for name, axis in axes.items():
        repository = PurePosixPath(axis.repository).name.removesuffix(".git")
        found |= {_normal(one): name for one in (repository, axis.package, name) if one}
    return found


def _first(pins: Sequence[tuple[str, str]]) -> PinnedVersion:
    version, where = pins[0]
    other = tuple(f"{place} ({one})" for one, place in pins[1:] if one != version)
    return PinnedVersion(version=version, where=where, other=other)


def _pins_of(file: Path) -> Iterator[tuple[str, str, int]]:
    try:
        text = file.read_bytes()[:_MAX_BYTES].decode("utf-8", "replace")
    except OSError:
        return
    numbered: Iterable[tuple[str, int]] = (
        (line, number) for number, line in enumerate(text.splitlines(), start=1)
    )
    if is_dockerfile(PurePosixPath(file.name)):
        yield from dockerfile_pins(text)
        numbered = dockerfile_lines(text)
    if file.suffix == _SCRIPT:  # It installs sources; the versions in other commands may be anything.
        yield from script_pins(text)
        return
    always = _always_required(text) if file.name == "pyproject.toml" else None
    for line, number in numbered:
        if file.name == REQUIRED_VERL:
            tag = _TAG.fullmatch(line)
            if tag:
                yield "verl", tag[1], number
            continue
        requirement = re.split(r"(?:^|\s)#", line)[0]
        if always is not None and not any(one in requirement for one in always):
            continue
        for match in (*_PIN.finditer(requirement), *_DIRECT.finditer(requirement)):
            # The build for the CPU is the one that torch_npu extends.
            yield match[1], match[2].rstrip(",;").removesuffix("+cpu"), number


def _always_required(text: str) -> frozenset[str]:
    """The requirements of a pyproject.toml that everybody with an NPU installs, also to build it."""
    try:
        data = tomllib.loads(text)
        project = data.get("project", {})
        found = [*project.get("dependencies", ()), *data.get("build-system", {}).get("requires", ())]
        for groups in (project.get("optional-dependencies", {}), data.get("dependency-groups", {})):
            found += [one for name, ones in groups.items() if _FOR_NPU.search(name.lower()) for one in ones]
    except (ValueError, AttributeError, TypeError):
        return frozenset()
    return frozenset(one for one in found if isinstance(one, str) and one)


def _is_valid(axis: Axis, version: str) -> bool:
    try:
        axis.parse(version)
    except ValueError:
        return False
    return not axis.values or version in axis.values


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
